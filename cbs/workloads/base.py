"""What a workload is: model, data, loss and validation. The optimizer is an axis of the sweep, not part of it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cbs.target import Direction

Batch = Any
"""A tensor, or a tuple or dictionary of tensors, whose first dimension counts examples."""


class TrainingStream(Protocol):
    """Training examples in an order fixed by the seed alone."""

    def next(self, examples: int) -> Batch:
        """The next ``examples`` examples."""


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
    """

    metric: str
    metric_unit: str
    direction: Direction
    default_target: float
    example_unit: str
    tokens_per_example: int | None
    data_hash: str | None

    def build_model(self) -> nn.Module:
        """A freshly initialised model, drawn from torch's global random state (seeded by the caller)."""

    def training_stream(self, generator: torch.Generator) -> TrainingStream:
        """The training examples, in an order that depends on ``generator`` alone."""

    def example_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of every example, shape ``[examples]``; the training loss is their mean."""

    def validate(self, model: nn.Module) -> float:
        """The validation metric of ``model``, on the same data every time."""
