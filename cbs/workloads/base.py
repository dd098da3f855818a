"""What a workload is: model, data, loss and validation. The optimizer is an axis of the sweep, not part of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cbs.trial.target import Direction

Batch = Any
"""A tensor, or a tuple or dictionary of tensors, whose first dimension counts examples."""


class TrainingStream(Protocol):
    """Training examples in an order fixed by the seed alone, however they are cut into batches.

    A stream may have a method ``skip(examples)`` that goes on after so many; a trial that is picked up again then need
    not draw what it has seen.
    """

    def next(self, examples: int) -> Batch:
        """The next ``examples`` examples; called once per step of a trial."""


@runtime_checkable
class Workload(Protocol):
    """The protocol every workload follows; a user's own needs these names and nothing else.

    Attributes:
        metric: name of the validation metric, for example ``"validation_loss"``.
        metric_unit: its unit, for example ``"nats/byte"``.
        direction: ``"below"`` if smaller is better.
        default_target: the target used when none is given.
        example_unit: what one example is, for example ``"sequence"``.
        tokens_per_example: tokens in an example, or ``None``.
        data_hash: 16 hexadecimal digits that identify the data, or ``None`` for synthetic data.

    A method ``load(model, optimizer, path)`` puts a checkpoint of one's own kind into both, where trials start from one
    (:mod:`cbs.training.birth`); ``optimizer`` is ``None`` where its state is not wanted. An attribute
    ``training_examples`` says how many examples the training stream has, where it ends.

    An attribute ``validation_examples``, how many examples :meth:`validate` sees, lets ``cbs sweep --dry-run``
    extrapolate a validation pass that takes long.

    A regression on a line, trained for one step:

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
        """A freshly initialised model, drawn from torch's global random state.

        Called once per trial, which seeds that state.
        """

    def training_stream(self, generator: torch.Generator) -> TrainingStream:
        """The training examples, in an order that depends on ``generator`` alone; called once per trial."""

    def example_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of every example, shape ``[examples]``; the training loss is their mean.

        Called once per forward and backward pass of a step, with all of its examples or some.
        """

    def validate(self, model: nn.Module) -> float | Mapping[str, float]:
        """The validation metric of ``model``, on the same data every time; several by name, :attr:`metric` among them.

        An attribute ``directions`` says by name which side is better where that is not ``direction``.

        Called before the first step and at every evaluation, in evaluation mode and without gradients.
        """


@runtime_checkable
class PredictiveWorkload(Workload, Protocol):
    """A workload whose loss reads the model through its outputs alone; second-order optimizers need that.

    ``example_losses(model, batch)`` equals ``output_losses(outputs(model, batch), batch)``.
    """

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Outputs of the model for every example, shape ``[examples, ...]``."""

    def output_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Loss of every example, shape ``[examples]``."""

    def curvature_sample(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        """For every example a vector z, shape of ``outputs``, with mean 0 and E[z z'] the Hessian of its loss in its
        outputs; see :class:`cbs.optimizers.problem.Problem`. ``generator`` is on the CPU."""
