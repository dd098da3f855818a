"""The protocol of a workload: model, data, loss and validation; and what the losses of several have in common.

The optimizer is an axis of the sweep, not part of a workload.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cbs.trial.target import Direction

Batch = Any  # A tensor, or a tuple or dictionary of tensors, whose first dimension counts examples


class TrainingStream(Protocol):
    """Training examples in an order that depends only on the seed, however they are divided into batches.

    A stream may have a method ``skip(examples)`` that continues after this many examples; a resumed trial then need not
    draw again what it has seen.

    Example of the numbers from 0 on, in their order:

    >>> class Counted:
    ...     seen = 0
    ...     def next(self, examples):
    ...         self.seen += examples
    ...         return torch.arange(self.seen - examples, self.seen)
    >>> stream = Counted()
    >>> stream.next(2).tolist(), stream.next(3).tolist()
    ([0, 1], [2, 3, 4])
    """

    def next(self, examples: int) -> Batch:
        """Return the next ``examples`` examples; called once per step of a trial."""


@runtime_checkable
class Workload(Protocol):
    """The protocol that every workload follows; a user's own workload needs these members and nothing else.

    Attributes:
        metric: name of the validation metric, for example ``"validation_loss"``.
        metric_unit: its unit, for example ``"nats/byte"``.
        direction: ``"below"`` if smaller is better.
        default_target: the target used when none is given.
        example_unit: what one example is, for example ``"sequence"``.
        tokens_per_example: tokens in an example, or ``None``.
        data_hash: 16 hexadecimal digits that identify the data, or ``None`` for synthetic data.

    Optional members: a method ``load(model, optimizer, path)`` loads a checkpoint of the user's own format into both,
    for trials that start from one (:mod:`cbs.training.birth`); ``optimizer`` is ``None`` where its state is not needed.
    An attribute ``training_examples`` holds the number of examples in a finite training stream. An attribute
    ``validation_examples``, the number of examples in :meth:`validate`, lets ``cbs sweep --dry-run`` extrapolate the
    duration of a long validation pass.

    Example of a linear regression:

    >>> from torch import nn
    >>> class Points:
    ...     def __init__(self, generator):
    ...         self.generator = generator
    ...     def next(self, examples):
    ...         return torch.rand(examples, 1, generator=self.generator)
    >>> class Line:
    ...     metric, metric_unit, direction, default_target = "validation_loss", "", "below", 0.01
    ...     example_unit, tokens_per_example, data_hash = "point", None, None
    ...     def build_model(self):
    ...         return nn.Linear(1, 1)
    ...     def training_stream(self, generator):
    ...         return Points(generator)
    ...     def example_losses(self, model, batch):
    ...         return (model(batch) - 2 * batch).square().flatten()
    ...     def validate(self, model):
    ...         return float(self.example_losses(model, torch.linspace(0, 1, 20)[:, None]).mean())
    >>> line = Line()
    >>> isinstance(line, Workload)
    True
    >>> model, stream = line.build_model(), line.training_stream(torch.Generator().manual_seed(0))
    >>> line.example_losses(model, stream.next(4)).shape
    torch.Size([4])
    """

    metric: str
    metric_unit: str
    direction: Direction
    default_target: float
    example_unit: str
    tokens_per_example: int | None
    data_hash: str | None

    def build_model(self) -> nn.Module:
        """Return a newly initialized model, drawn from torch's global random state.

        Called once per trial, which seeds that state.
        """

    def training_stream(self, generator: torch.Generator) -> TrainingStream:
        """Return the training examples in an order that depends on ``generator`` only; called once per trial."""

    def example_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of every example, shape ``[examples]``; the training loss is their mean.

        Called once per forward and backward pass of a step, with all of its examples or some.
        """

    def validate(self, model: nn.Module) -> float | Mapping[str, float]:
        """Return the validation metric of ``model``, on the same data every time.

        Several metrics are returned by name, including :attr:`metric`. An attribute ``directions`` says by name which
        side is better, for metrics where it is not ``direction``.

        Called before the first step and at every evaluation, in evaluation mode and without gradients.
        """


@runtime_checkable
class PredictiveWorkload(Workload, Protocol):
    """A workload whose loss depends on the model only through its outputs, which second-order optimizers need.

    A class that derives from this one need not define ``example_losses``.
    """

    def example_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of every example, shape ``[examples]``: ``output_losses(outputs(model, batch), batch)``."""
        return self.output_losses(self.outputs(model, batch), batch)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the outputs of the model for every example, shape ``[examples, ...]``."""

    def output_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of every example, shape ``[examples]``."""

    def curvature_sample(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return for every example a random vector z, in the shape of ``outputs``, that samples the loss's curvature.

        z has mean 0, and E[z z'] is the Hessian of the example's loss with respect to its outputs; see
        :class:`cbs.optimizers.problem.Problem`. ``generator`` is on the CPU.
        """


def cross_entropy_sample(outputs: Tensor, generator: torch.Generator) -> Tensor:
    r"""Return gradients of the cross-entropy with respect to the logits, at classes drawn from the model.

    They have mean 0, and their covariance is the Hessian of the cross-entropy, :math:`diag(p) - p p^\top`.

    Args:
        outputs: logits, shape ``[..., classes]``.
        generator: generator of the draws, on the CPU.

    Returns:
        A tensor in the shape of ``outputs``.
    """
    probabilities = outputs.detach().softmax(-1)
    uniform = torch.rand(outputs.shape[:-1], generator=generator).to(outputs.device)
    drawn = (probabilities.cumsum(-1) < uniform[..., None]).sum(-1).clamp_(max=outputs.shape[-1] - 1)
    return probabilities.scatter_add(-1, drawn[..., None], -probabilities.new_ones(*drawn.shape, 1))


class FixedSet:
    """A fixed set of examples, kept on every device on which it was used.

    Args:
        parts: tensors whose first dimension counts examples.
        chunk: largest number of examples per forward pass.
    """

    def __init__(self, parts: tuple[Tensor, ...], chunk: int = 256) -> None:
        self._parts = {torch.device("cpu"): parts}
        self._chunk = chunk

    def __len__(self) -> int:
        return len(self._parts[torch.device("cpu")][0])

    def means(self, values: Callable[[tuple[Tensor, ...]], Tensor], device: torch.device) -> list[float]:
        """Return the means over the set of ``values(batch)``, shape ``[examples, values]``; without gradients.

        Bitwise the same for the same weights.
        """
        if device not in self._parts:
            self._parts[device] = tuple(part.to(device) for part in self._parts[torch.device("cpu")])
        chunks = zip(*(part.split(self._chunk) for part in self._parts[device]), strict=True)
        with torch.no_grad():
            found = torch.cat([values(chunk) for chunk in chunks])
        return found.double().mean(0).tolist()
