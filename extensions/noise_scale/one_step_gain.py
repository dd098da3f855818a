r"""A single step from a model's current weights: its loss decrease at the best length, as a function of the batch size.

With gradient G, Hessian H and covariance Sigma of one example's gradient, a step of length :math:`\epsilon` along the
negative gradient of B examples changes a quadratic loss by

.. math:: -\epsilon |G|^2 + \tfrac12 \epsilon^2 (G^\top H G + tr(H\Sigma)/B)

in expectation, so that the best step saves :math:`\Delta L_{max}/(1 + B_{noise}/B)` with
:math:`B_{noise} = tr(H\Sigma)/G^\top H G` (McCandlish et al. 2018, arXiv 1812.06162, equations 2.4 to 2.8).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbs.compute import seeding
from cbs.compute.hessian import flat, hessian_product, shaped
from cbs.compute.state import evaluating
from cbs.errors import ConfigError
from cbs.training.loop import TrainingLoop

# Step lengths that are tried, relative to the best one of the quadratic
LENGTHS = (0.25, 0.5, 2.0**-0.5, 1.0, 2.0**0.5, 2.0, 4.0)

_LOST = 1e30  # Replaces a loss that is not finite

# How many times the range of lengths is extended by a factor of 4 when the best is the shortest or the longest
_WIDENED = 3


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """Measurements at every batch size, with replicates of its own.

    Attributes:
        batch_sizes: increasing, ``[M]``.
        lengths: step lengths along the gradient, increasing, ``[M]`` arrays of shape ``[J]``.
        changes: changes of the mean loss on held-out examples, ``[M]`` arrays of shape ``[R, J]``.
        sq_norms: squared norms of the gradients, ``[M, R]``.
        curvatures: ``g H g`` for the gradients, ``[M, R]``.
        examples: number of held-out examples.
        loss: mean loss of the held-out examples before the step.
    """

    batch_sizes: tuple[int, ...]
    lengths: tuple[np.ndarray, ...]
    changes: tuple[np.ndarray, ...]
    sq_norms: np.ndarray
    curvatures: np.ndarray
    examples: int
    loss: float


def one_step(
    loop: TrainingLoop,
    batch_sizes: Sequence[int],
    *,
    replicates: int = 32,
    examples: int = 2048,
) -> OneStep:
    """Measure single steps from a model's current weights, in evaluation mode.

    Args:
        loop: training loop with the model, which is left as it is.
        batch_sizes: batch sizes of the steps, two or more.
        replicates: number of gradients at every batch size, two or more.
        examples: number of held-out examples for losses and the Hessian; it should be well above the noise scale.

    Raises:
        ConfigError: if there are fewer, the model has no second derivative, or no loss is finite.
    """
    sizes = sorted(set(batch_sizes))
    if len(sizes) < 2 or sizes[0] < 1 or replicates < 2 or examples < 1:
        raise ConfigError("one step needs at least two batch sizes, two replicates and one example")
    model, parameters = loop.model, [each for each in loop.model.parameters() if each.requires_grad]

    def loss(batch: Any) -> Tensor:
        return loop.workload.example_losses(model, batch).double().mean()

    def gradients(size: int) -> Iterator[Tensor]:
        stream = loop.workload.training_stream(seeding.generator(loop.config.seed, f"one step {size}"))
        for _ in range(replicates):
            with torch.enable_grad():
                value = loss(loop.to_device(stream.next(size)))
            yield flat(torch.autograd.grad(value, parameters, materialize_grads=True))

    with evaluating(model):
        held = loop.workload.training_stream(seeding.generator(loop.config.seed, "one step held out")).next(examples)
        held = loop.to_device(held)
        start = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            before = float(loss(held))

        def put_back() -> None:
            with torch.no_grad():
                for parameter, value in zip(parameters, start, strict=True):
                    parameter.copy_(value)

        def restored(size: int) -> Iterator[Tensor]:
            """Yield the gradients, each after the model's weights have been restored."""
            drawn = gradients(size)
            while True:
                put_back()
                gradient = next(drawn, None)
                if gradient is None:
                    return
                yield gradient

        def change(gradient: Tensor, length: float) -> float:
            with torch.no_grad():
                for parameter, value, part in zip(parameters, start, shaped(gradient, parameters), strict=True):
                    parameter.copy_(value - length * part)
                return float(loss(held)) - before

        signal, measured = 0.0, []
        try:
            for size in reversed(sizes):
                # anew each time: it keeps a graph of the parameters, which steps change in place
                product = hessian_product(loss, held, parameters)
                norms, curved, total = np.empty(replicates), np.empty(replicates), None
                for turn, gradient in enumerate(gradients(size)):
                    bent = flat(product(shaped(gradient, parameters)))
                    norms[turn], curved[turn] = float(gradient @ gradient), float(gradient @ bent)
                    total = gradient if total is None else total.add_(gradient)
                assert total is not None
                # From pairs of independent gradients of the largest batch size, which are the least noisy.
                signal = signal or (float(total @ total) - norms.sum()) / (replicates * (replicates - 1))
                # A loss that is straight along the gradient has no best length: the search goes outwards.
                centre = (signal if signal > 0 else norms.mean()) / max(abs(curved.mean()), 1e-300)

                def changes(lengths: Sequence[float], size: int = size) -> np.ndarray:
                    rows = [[change(gradient, length) for length in lengths] for gradient in restored(size)]
                    return np.array(rows)

                measured.append((*_searched([centre * length for length in LENGTHS], changes), norms, curved))
        finally:
            put_back()
    every = list(zip(*measured[::-1], strict=True))
    return OneStep(
        batch_sizes=tuple(sizes),
        lengths=every[0],
        changes=every[1],
        sq_norms=np.stack(every[2]),
        curvatures=np.stack(every[3]),
        examples=examples,
        loss=before,
    )


def _searched(lengths: list[float], changes: Callable[[Sequence[float]], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths around the one with the least mean loss, and the changes for every gradient, ``[R, J]``.

    A change that is not finite is replaced by a large number.
    """
    tried = dict(zip(lengths, changes(lengths).T, strict=True))
    for _ in range(_WIDENED):
        lengths = sorted(tried)
        best = int(np.argmin([np.nan_to_num(tried[length], nan=np.inf).mean() for length in lengths]))
        if 0 < best < len(lengths) - 1:
            break
        added = [length * (0.25 if not best else 4.0) for length in (lengths[:2] if not best else lengths[-2:])]
        tried |= dict(zip(added, changes(added).T, strict=True))
    stacked = np.stack([tried[length] for length in sorted(tried)], axis=1)
    if not np.isfinite(stacked).all(axis=0).any():
        raise ConfigError("no step has a finite loss: the model diverges for every step length")
    return np.array(sorted(tried)), np.nan_to_num(stacked, nan=_LOST, posinf=_LOST)
