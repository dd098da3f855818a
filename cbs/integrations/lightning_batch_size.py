"""Batch sizes that follow the noise scale in training with the Lightning ``Trainer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cbs.errors import ConfigError
from cbs.integrations.common import of_last_look
from cbs.integrations.lightning import LightningNoiseScaleCallback
from cbs.noise_scale import NoiseScaleMeter
from cbs.schedules.controller import BatchSizeController


class LightningBatchSizeCallback(LightningNoiseScaleCallback):
    r"""Advises on, or controls, ``accumulate_grad_batches`` by a rule that observes the noise scale.

    ::

        trainer = Trainer(..., callbacks=[BatchSizeCallback(rule="norm_test(theta=0.5)", cap=4096, drives=True)])

    Like Lightning's ``GradientAccumulationScheduler`` this changes ``trainer.accumulate_grad_batches``, before a batch
    whose index in the epoch is a multiple of the old and of the new value, where a step begins under either. The
    learning rate is multiplied during the optimizer's step only.

    Numbers of steps do not change with the batch size: ``max_steps``, and a learning-rate scheduler with
    ``interval="step"``, cause a warning in the log.

    Args:
        cap: largest batch size in examples, over all ranks.
        rule: see :class:`~cbs.schedules.accumulation.AccumulationPlan`.
        drives: whether the Trainer's setting is changed; otherwise the rule only advises.
        warmup_examples: number of examples before which the rule does not observe.
        micro_batch_size: number of examples in a batch on one rank; by default that of the data loader.
        log: see :class:`~cbs.schedules.controller.BatchSizeController`.
        options: see :class:`~cbs.integrations.lightning.LightningNoiseScaleCallback`.

    Attributes:
        controller: the controller, from the beginning of training on.

    Raises:
        ConfigError: when training begins, if the run or the arguments are not supported.
    """

    def __init__(
        self,
        *,
        cap: int,
        rule: str = "doubling",
        drives: bool = False,
        warmup_examples: int = 0,
        micro_batch_size: int | None = None,
        log: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.settings = {"cap": cap, "rule": rule, "drives": drives, "warmup_examples": warmup_examples, "log": log}
        self.micro_batch_size = micro_batch_size
        self.controller: BatchSizeController | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.settings["drives"]:
            _check(trainer, self._tell)
        super().on_train_start(trainer, pl_module)
        assert self.controller is not None
        if self.settings["drives"]:
            trainer.accumulate_grad_batches = self.controller.micro_batches

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        controller = self.controller
        assert controller is not None
        if self.settings["drives"] and controller.advised != controller.stage:
            wanted = controller.advised.batch_size // controller.unit
            if batch_idx % wanted == 0 == batch_idx % controller.micro_batches:
                controller.adopt()
                trainer.accumulate_grad_batches = controller.micro_batches
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def _recorder(self, trainer: Any, meter: NoiseScaleMeter) -> BatchSizeController:
        examples = self.micro_batch_size or getattr(trainer.train_dataloader, "batch_size", None)
        if examples is None:
            meter.detach()
            raise ConfigError("the data loader does not say how many examples a batch has: pass micro_batch_size")
        self.controller = BatchSizeController(
            meter,
            trainer.optimizers[0],
            micro_batch_size=examples,
            micro_batches=trainer.accumulate_grad_batches,
            world_size=trainer.world_size,
            deferred=True,
            lr_in_examples=True,
            **self.settings,  # type: ignore[arg-type]
        )
        return self.controller

    def _logged(self) -> dict[str, float]:
        assert self.controller is not None
        return of_last_look(self.controller)

    def _detach(self) -> None:
        super()._detach()
        if self.controller is not None:
            self.controller.detach()


def _check(trainer: Any, tell: Callable[[str], None]) -> None:
    """Check that the number of batches in a step may change.

    Raises:
        ConfigError: if something else changes it.
    """
    if any(type(callback).__name__ == "GradientAccumulationScheduler" for callback in trainer.callbacks):
        raise ConfigError(
            "GradientAccumulationScheduler changes accumulate_grad_batches, too: remove one of the two callbacks"
        )
    if any(config.interval == "step" for config in trainer.lr_scheduler_configs):
        tell("a learning-rate scheduler has interval='step', and steps will hold more examples: it falls too late")
    if trainer.max_steps is not None and trainer.max_steps > 0:
        tell(
            "max_steps counts steps, and steps will hold more examples: the run sees more data than planned; use "
            "max_epochs"
        )
