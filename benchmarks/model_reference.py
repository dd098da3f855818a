r"""Moments of a step by the slow obvious loop: one model, one example, one backward pass at a time.

An example's gradient is that of its term in the loss of the step. Where nothing is random it is run alone, and its loss
weighted with its share. Where masks are drawn, the whole micro-batch is run once for every example with the same seed,
and that example's term differentiated. The gradients have to add up to that of the micro-batch; where they do not,
examples have no gradient of their own.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.zoo_entry import Batch, Entry
from cbs.noise_scale.geometries import as_real

Gradients = list[Tensor]  # One tensor per trainable parameter, in float64


@dataclass(frozen=True, kw_only=True)
class Micro:
    """One micro-batch of a step.

    Attributes:
        batch: its data.
        seed: of the global random state before its forward pass.
        factor: what its mean loss is multiplied with in the loss of the step.
    """

    batch: Batch
    seed: int
    factor: float


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Gradients of one step.

    Attributes:
        examples: of every example of every micro-batch.
        micros: of every micro-batch as a whole.
        gap: how far the examples are from adding up, relative to the norms added up.
        passes: forward passes that share the examples of a micro-batch.
    """

    examples: list[list[Gradients]]
    micros: list[Gradients]
    gap: float
    passes: int

    @property
    def whole(self) -> Gradients:
        """The gradient of the step."""
        return _sum(self.micros)

    def groups(self, source: str) -> list[tuple[Gradients, int]]:
        """Gradient and number of examples of every group that a source makes."""
        found: list[tuple[Gradients, int]] = []
        for examples, micro in zip(self.examples, self.micros, strict=True):
            if source == "accumulation":
                found.append((micro, len(examples)))
                continue
            for start, stop in _parts(len(examples), self.passes):
                here = examples[start:stop]
                least = 2 if source == "split" else len(here)
                size = max(
                    size for size in range(1, len(here) + 1) if len(here) % size == 0 and len(here) // size >= least
                )
                found += [(_sum(here[low : low + size]), size) for low in range(0, len(here), size)]
        return found


def reference(
    entry: Entry, model: nn.Module, micros: Sequence[Micro], context: Callable[[], AbstractContextManager[object]]
) -> Reference:
    """Gradients of a step that begins with ``model``.

    Args:
        entry: of the model.
        model: in the state at the beginning of the step, with nothing attached; in its state at the end afterwards.
        micros: of the step.
        context: around every forward pass and its loss, as for autocast.
    """
    examples, wholes, gaps = [], [], []
    for micro in micros:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        shares = entry.shares(micro.batch)
        own = []
        for example in range(len(shares)):

            def term(at: int = example, micro: Micro = micro, shares: Tensor = shares) -> Tensor:
                if entry.terms is not None:
                    return entry.terms(model, micro.batch)[at]
                return entry.loss(model, entry.take(micro.batch, [at])) * shares[at]

            own.append(_gradients(model, micro, term, context))
            model.load_state_dict(before)  # the next pass starts from the same buffers
        whole = _gradients(model, micro, partial(entry.loss, model, micro.batch), context)
        size = sum(map(_norm, own))
        difference = _norm([left - right for left, right in zip(_sum(own), whole, strict=True)])
        examples.append(own)
        wholes.append(whole)
        gaps.append(difference / size if size else math.inf)
    return Reference(examples=examples, micros=wholes, gap=max(gaps), passes=entry.passes)


def moments(groups: Sequence[tuple[Gradients, int]], whole: Gradients) -> tuple[Tensor, Tensor, Tensor]:
    r"""Signal and noise of every parameter tensor, and what rounding is relative to, shape ``[3, parameters]``.

    With B examples in M groups, g the gradient of the step and :math:`g_j = c_j B/b_j` that of a group, the mean of
    :math:`|g_j|^2` with weights :math:`b_j/B` stands for batches of B/M examples (McCandlish et al. 2018, appendix A).

    Returns:
        Signal, noise, and the sum of the absolute values that the signal is a difference of.
    """
    total = sum(size for _, size in groups)
    small = total / len(groups)
    at_small = torch.zeros(len(whole), dtype=torch.float64)
    for gradients, size in groups:
        scaled = torch.stack([(gradient * total / size).square().sum() for gradient in gradients])
        at_small += size / total * scaled
    at_big = torch.stack([gradient.square().sum() for gradient in whole])
    signal = (total * at_big - small * at_small) / (total - small)
    noise = (at_small - at_big) / (1 / small - 1 / total)
    return signal, noise, (total * at_big + small * at_small) / (total - small)


def _gradients(
    model: nn.Module,
    micro: Micro,
    loss: Callable[[], Tensor],
    context: Callable[[], AbstractContextManager[object]],
) -> Gradients:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.manual_seed(micro.seed)
    with context():
        value = loss()
    found = torch.autograd.grad(value * micro.factor, parameters, allow_unused=True, materialize_grads=True)
    return [as_real(gradient).double() for gradient in found]


def _parts(count: int, parts: int) -> list[tuple[int, int]]:
    """Neighbours in parts whose sizes differ by at most one, larger ones first, none empty."""
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + count // parts + (part < count % parts))
    return [(low, high) for low, high in pairwise(ends) if low < high]


def _sum(gradients: Sequence[Gradients]) -> Gradients:
    return [torch.stack(column).sum(0) for column in zip(*gradients, strict=True)]


def _norm(gradients: Gradients) -> float:
    return float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())
