"""What a trial does beside training, part by part: the protocol, and what a part is told of a step."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cbs.schedules.batch_size import Stage
from cbs.workloads.base import Batch


@dataclass
class TrainingStep:
    """One optimizer update under way.

    Attributes:
        number: of the update, from 1 on.
        stage: its batch size, in examples over all ranks, and its factor of the learning rate.
        examples: seen by the trial, those of this update among them.
        batch: the examples that this rank trains on, on its device; ``None`` until they are drawn.
        watching: what is entered around every forward pass of the update.
        noise_measured: whether the noise scale of this update is measured.
        values: by name of a column of the steps, its value, a tensor of shape ``[]``. ``train_loss`` is the first.
        late: likewise of columns that are in ``values`` as NaN, and known only after the optimizer's step.
        planned: likewise of the columns that are numbers from the start and are never on the device.
    """

    number: int
    stage: Stage
    examples: int
    batch: Batch = None
    watching: list[AbstractContextManager[Any]] = field(default_factory=list)
    noise_measured: bool = False
    values: dict[str, Tensor] = field(default_factory=dict)
    late: dict[str, Tensor] = field(default_factory=dict)
    planned: dict[str, float] = field(default_factory=dict)


class Part:
    """Something that goes along with training: it looks at the steps, changes gradients, or keeps what it saw.

    :class:`~cbs.training.loop.TrainingLoop` has a list of parts and calls each method on all of them in that order; all
    do nothing unless a part defines them. For one update the calls are ``begin``, forward and backward passes,
    ``before_step``, the optimizer's step, ``after_step``. Every rank calls them for every update.

    Attributes:
        columns: names of the columns that the part puts into ``step.values`` in every update.
        planned: likewise into ``step.planned``.
    """

    columns: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()

    def begin(self, step: TrainingStep) -> None:
        """The loop begins an update: its batch size is known, its examples are not drawn yet."""

    def before_step(self, step: TrainingStep) -> None:
        """Every ``.grad`` holds the gradient of the update's mean loss, averaged over ranks; the optimizer is next."""

    def after_step(self, step: TrainingStep) -> None:
        """The optimizer has moved the weights."""

    def state(self) -> dict[str, Any]:
        """What a later process needs to go on from the latest evaluation: tensors and plain values.

        The loop asks for it when it writes a checkpoint.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state`, before the first update of this process; model and optimizer are back already."""
