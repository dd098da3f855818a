"""Batch sizes that follow the noise scale in training with the Hugging Face ``Trainer``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from cbs.errors import ConfigError
from cbs.integrations.common import Notes, of_last_look
from cbs.integrations.huggingface import NoiseScaleCallback
from cbs.noise_scale import NoiseScaleMeter
from cbs.schedules.controller import BatchSizeController


class BatchSizeCallback(NoiseScaleCallback):
    r"""Advises on, or controls, ``gradient_accumulation_steps`` by a rule that observes the noise scale.

    ::

        trainer = Trainer(..., callbacks=[BatchSizeCallback(rule="norm_test(theta=0.5)", cap=4096, drives=True)])

    The Trainer reads ``gradient_accumulation_steps`` at every step, and ends a step where the number of micro-batches
    of the epoch so far is a multiple of it. A larger value is set as soon as that number is a multiple of it, at the
    latest at the next epoch. The learning rate is multiplied during the optimizer's step only. Training logs contain
    ``batch_size``, ``batch_size/advised``, ``batch_size/lr_factor`` and the latest observed noise scale.

    Numbers of steps that the Trainer uses do not change with the batch size: ``max_steps``, and a learning-rate
    schedule other than a constant one, cause a warning in the log. The Trainer also finds its position in the data from
    the number of steps, so a run whose batch size has grown can only be resumed with ``ignore_data_skip``.

    Args:
        cap: largest batch size in examples, over all ranks.
        rule: see :class:`~cbs.schedules.accumulation.AccumulationPlan`.
        drives: whether the Trainer's setting is changed; otherwise the rule only advises.
        warmup_examples: number of examples before which the rule does not observe.
        log: see :class:`~cbs.schedules.controller.BatchSizeController`.
        options: see :class:`~cbs.integrations.huggingface.NoiseScaleCallback`.

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
        log: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.settings = {"cap": cap, "rule": rule, "drives": drives, "warmup_examples": warmup_examples, "log": log}
        self.controller: BatchSizeController | None = None
        self._at_first = self._batches = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._at_first = args.gradient_accumulation_steps
        super().on_train_begin(args, state, control, **kwargs)
        if not self.settings["drives"]:
            return
        assert self.controller is not None
        try:
            grown = self.controller.micro_batches != self._at_first
            self._batches = batches_of_an_epoch(args, state, kwargs["train_dataloader"], grown=grown, tell=self._tell)
            if args.max_steps > 0:
                self._tell(
                    "max_steps counts steps, and steps will hold more examples: the run sees more data than planned; "
                    "use num_train_epochs"
                )
        except ConfigError:
            self.detach()
            raise
        args.gradient_accumulation_steps = self.controller.micro_batches

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        controller = self.controller
        if controller is None or not self.settings["drives"] or controller.advised == controller.stage:
            return
        assert state.epoch is not None
        if place_in_epoch(state, self._batches) % (controller.advised.batch_size // controller.unit) == 0:
            controller.adopt()
            args.gradient_accumulation_steps = controller.micro_batches

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_end(args, state, control, **kwargs)
        args.gradient_accumulation_steps = self._at_first

    def detach(self) -> None:
        super().detach()
        if self.controller is not None:
            self.controller.detach()

    def _recorder(self, args: TrainingArguments, meter: NoiseScaleMeter) -> BatchSizeController:
        self.controller = BatchSizeController(
            meter,
            getattr(self._optimizer, "optimizer", self._optimizer),
            micro_batch_size=args.train_batch_size,
            micro_batches=self._at_first,
            deferred=True,
            lr_in_examples=True,
            **self.settings,  # type: ignore[arg-type]
        )
        return self.controller

    def _logged(self) -> dict[str, float]:
        assert self.controller is not None
        return of_last_look(self.controller)

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | self.settings


def batches_of_an_epoch(args: TrainingArguments, state: TrainerState, data: Any, *, grown: bool, tell: Notes) -> int:
    """Return the number of micro-batches in an epoch on each rank, after checking that their number per step can
    change.

    Args:
        args, state: arguments and state of the Trainer.
        data: its data loader.
        grown: whether steps already have more micro-batches than at first.
        tell: logger for warnings.

    Raises:
        ConfigError: if the number of micro-batches in a step cannot change.
    """
    if not has_length(data):
        raise ConfigError(
            "the batch size cannot grow on a data set without a length, which the Trainer needs to end its steps"
        )
    if getattr(args, "train_sampling_strategy", None) == "batch_rebalance":
        raise ConfigError("the sampler 'batch_rebalance' makes batches of one size: use another, or drives=False")
    if state.global_step and grown and not args.ignore_data_skip:
        raise ConfigError(
            "the Trainer finds its position in the data from steps of one size, but the batch size has grown: resume "
            "with ignore_data_skip=True, which continues with data from the beginning of an epoch"
        )
    if not str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)).startswith("constant"):
        tell(
            f"the Trainer's learning-rate schedule {args.lr_scheduler_type!s} counts steps, and steps will hold "
            "more examples: it falls too late; use a constant one"
        )
    return len(data)


def place_in_epoch(state: TrainerState, batches: int) -> int:
    """Return how many of the epoch's ``batches`` micro-batches are done; 0 at its end."""
    epoch = state.epoch or 0.0
    return round((epoch - int(epoch)) * batches) % batches
