"""The protocol of the parts of a training loop, and the state of a step that is passed to them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cbs.schedules.batch_size import Stage
from cbs.workloads.base import Batch


@dataclass
class TrainingStep:
    """One optimizer update in progress.

    Attributes:
        number: number of the update, counted from 1.
        stage: its batch size, in examples over all ranks, and its factor of the learning rate.
        examples: number of examples seen by the trial, including this update.
        batch: the examples that this rank trains on, on its device; ``None`` until they are drawn.
        watching: context managers that are entered around every forward pass of the update.
        noise_measured: whether the noise scale of this update is measured.
        values: values of the columns of the step by name, tensors of shape ``[]``; ``train_loss`` is the first.
        late: values of columns that are NaN in ``values`` and known only after the optimizer's step, by name.
        planned: values of columns that are plain numbers, never on the device, by name.
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
    """Something that runs along with training: it records steps, changes gradients, or keeps state.

    :class:`~cbs.training.loop.TrainingLoop` has a list of parts and calls each method on all of them in this order; by
    default they do nothing. For one update the calls are ``begin``, forward and backward passes, ``before_step``, the
    optimizer's step, ``after_step``. Every rank calls them for every update.

    Attributes:
        columns: names of the columns that the part puts into ``step.values`` in every update.
        planned: names of the columns that the part puts into ``step.planned`` in every update.
    """

    columns: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()

    def begin(self, step: TrainingStep) -> None:
        """Called when an update begins: its batch size is known, its examples are not drawn yet."""

    def before_step(self, step: TrainingStep) -> None:
        """Called before the optimizer's step, when every ``.grad`` holds the gradient of the update's mean loss over
        all ranks.
        """

    def after_step(self, step: TrainingStep) -> None:
        """Called after the optimizer has updated the weights."""

    def state(self) -> dict[str, Any]:
        """Return what a later process needs to continue from the latest evaluation: tensors and plain values.

        The loop calls this when it writes a checkpoint.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state`.

        Called before the first update of this process; model and optimizer are restored before other parts.
        """
