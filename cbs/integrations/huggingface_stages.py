"""A planned table of batch sizes in training with the Hugging Face ``Trainer``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cbs.errors import ConfigError, needed
from cbs.integrations.common import Notes
from cbs.integrations.huggingface import notes
from cbs.schedules.plan import read_plan

with needed("huggingface", "callbacks of the Trainer"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import has_length


class StagesCallback(TrainerCallback, ExportableState):
    """Makes ``gradient_accumulation_steps`` follow a plan of batch sizes exactly.

    ::

        cbs schedule plan results/ --divisible-by 32 --export transformers > plan.json
        trainer = Trainer(..., callbacks=[StagesCallback("plan.json")])

    A stage begins with the first step at or after its start in examples, and training ends with the last step that fits
    into the plan. The learning rate is multiplied by the factor of the stage during the optimizer's step only. Training
    logs contain ``batch_size`` and ``batch_size/lr_factor``. An epoch ends with a smaller step where its micro-batches
    do not divide evenly, and an incomplete micro-batch counts as a whole one.

    The Trainer finds its position in the data from steps of one size, so a run whose batch size has grown can only be
    resumed with ``ignore_data_skip``; its position in the plan is in the checkpoint.

    Args:
        plan: file that ``cbs schedule plan --export transformers`` wrote, see :mod:`cbs.schedules.plan`.

    Attributes:
        examples: number of examples seen so far, over all ranks.

    Raises:
        ConfigError: if the file does not hold a plan; when training begins, if the run cannot follow it.
        DataError: if the file cannot be read.
    """

    def __init__(self, plan: str | Path) -> None:
        self.path, self.plan = str(plan), read_plan(plan)
        self.examples = 0
        self._schedule = self.plan.schedule
        self._at_first = self._unit = self._batches = self._done = 0
        self._hooks: list[Any] = []
        self._tell = notes()

    @property
    def batch_size(self) -> int:
        """Number of examples in the next step, over all ranks."""
        return self._schedule.stage(self.examples).batch_size

    @property
    def lr_factor(self) -> float:
        """Factor of the learning rate of the next step."""
        return self._schedule.stage(self.examples).lr_factor

    def state(self) -> dict[str, Any]:
        """Return the state for ``trainer_state.json``."""
        return {"args": {"plan": self.path}, "attributes": {"examples": self.examples}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.detach()
        self.examples = _examples(state) if state.global_step else 0
        self._unit = args.train_batch_size * args.world_size
        self._check(args, kwargs["model"])
        self._at_first = args.gradient_accumulation_steps
        grown = self.batch_size != self._schedule.stages[0].batch_size
        self._batches = _batches_of_an_epoch(args, state, kwargs["train_dataloader"], grown=grown, tell=self._tell)
        counts = self._schedule.steps(self.plan.examples)
        if not state.global_step and (
            state.num_train_epochs * self._batches * self._unit < self.plan.examples or state.max_steps < sum(counts)
        ):
            raise ConfigError(
                f"{self.path} has {self.plan.examples:,} examples in {sum(counts):,} steps, but the Trainer ends "
                "earlier: raise num_train_epochs, or leave out max_steps"
            )
        # A run whose batch size has grown resumes at the beginning of an epoch
        self._done = 0 if args.ignore_data_skip else _place_in_epoch(state, self._batches)
        self._follow(args)
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        self._hooks = _multiplied(optimizer, lambda: self.lr_factor)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        place, expected = _place_in_epoch(state, self._batches), self.batch_size // self._unit
        taken = (place or self._batches) - self._done
        if taken != min(expected, self._batches - self._done):
            raise ConfigError(
                f"the Trainer took {taken} micro-batches in a step of {expected}: this version of transformers ends "
                "steps differently, or another callback changes them"
            )
        self._done = place
        self.examples += taken * self._unit
        if self.examples + self.batch_size > self.plan.examples:
            control.should_training_stop = True
        self._follow(args)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is not None and "loss" in logs:
            values = {"batch_size": float(self.batch_size), "batch_size/lr_factor": self.lr_factor}
            logs.update(values)
            state.log_history[-1].update(values)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.detach()
        args.gradient_accumulation_steps = self._at_first
        if self.examples + self.batch_size <= self.plan.examples:
            self._tell(f"training ended after {self.examples:,} of the {self.plan.examples:,} examples of {self.path}")

    def detach(self) -> None:
        """Stop multiplying the optimizer's learning rates."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _follow(self, args: TrainingArguments) -> None:
        args.gradient_accumulation_steps = _From(self.batch_size // self._unit, self._done)

    def _check(self, args: TrainingArguments, model: Any) -> None:
        """Check that steps can have these batch sizes.

        Raises:
            ConfigError: if they cannot.
        """
        shared = getattr(args, "parallelism_config", None) is not None or (getattr(model, "tp_size", None) or 1) > 1
        unsuited = {
            "DataParallel: start one process per GPU with torchrun": args.n_gpu > 1,
            "DeepSpeed: use DDP or FSDP2": args.deepspeed_plugin is not None,
            "auto_find_batch_size: set per_device_train_batch_size": args.auto_find_batch_size,
            "split_batches: leave it off": getattr(args.accelerator_config, "split_batches", False),
            "parallelism in which ranks share an example: use DDP or FSDP2": shared,
        }
        for obstacle, holds in unsuited.items():
            if holds:
                raise ConfigError(f"a plan of batch sizes cannot be followed under {obstacle}")
        sizes = [stage.batch_size for stage in self._schedule.stages]
        if sizes != sorted(sizes):
            raise ConfigError(
                f"{self.path}: batch sizes fall, which the Trainer does not support; write a plan in which they only "
                "grow"
            )
        odd = [size for size in sizes if size % self._unit]
        if odd:
            raise ConfigError(
                f"{self.path}: batch size {odd[0]} is not a multiple of the {self._unit} examples of a micro-batch on "
                "all ranks: plan with --divisible-by, or change per_device_train_batch_size"
            )
        if args.gradient_accumulation_steps != sizes[0] // self._unit:
            raise ConfigError(
                f"{self.path} begins with batch size {sizes[0]}: set gradient_accumulation_steps="
                f"{sizes[0] // self._unit} instead of {args.gradient_accumulation_steps}"
            )


class _From(int):
    """A number of micro-batches whose multiples are counted from a position in the epoch.

    The Trainer ends a step where ``micro-batches of the epoch so far % gradient_accumulation_steps`` is 0. A plan may
    change the number at any step, so the remainder has to be counted from there. Pickled, it is a plain number.
    """

    place: int

    def __new__(cls, number: int, place: int) -> _From:
        made = super().__new__(cls, number)
        made.place = place
        return made

    def __rmod__(self, other: int) -> int:
        return (other - self.place) % int(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def _examples(state: TrainerState) -> int:
    """Return the examples seen by the run that wrote a checkpoint.

    Raises:
        ConfigError: if it did not follow a plan.
    """
    stored: Any = state.stateful_callbacks
    entries = stored.get(StagesCallback.__name__)
    if not entries:
        raise ConfigError(
            "the checkpoint was written without StagesCallback, so it has no position in the plan; start a new run"
        )
    entry = entries[0] if isinstance(entries, list) else entries
    return int(entry["attributes"]["examples"])


def _batches_of_an_epoch(args: TrainingArguments, state: TrainerState, data: Any, *, grown: bool, tell: Notes) -> int:
    """Return the micro-batches of an epoch on each rank, if the Trainer can change their number per step.

    Args:
        args, state: arguments and state of the Trainer.
        data: the Trainer's data loader.
        grown: whether the batch size has already grown.
        tell: called with a warning about settings that do not fit.

    Raises:
        ConfigError: if the Trainer cannot change it, or cannot resume with a grown batch size.
    """
    if not has_length(data):
        raise ConfigError("the batch size cannot grow on data without a length: the Trainer ends its steps by it")
    if getattr(args, "train_sampling_strategy", None) == "batch_rebalance":
        raise ConfigError("the sampler 'batch_rebalance' cuts batches of one size: take another")
    if state.global_step and grown and not args.ignore_data_skip:
        raise ConfigError(
            "the Trainer finds its place in the data from steps of one size, and the batch size has grown: resume "
            "with ignore_data_skip=True, which goes on with data from the beginning of an epoch"
        )
    if not str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)).startswith("constant"):
        tell(
            f"the Trainer's learning-rate schedule {args.lr_scheduler_type!s} counts steps, and steps will hold "
            "more examples: it falls too late; take a constant one"
        )
    return len(data)


def _place_in_epoch(state: TrainerState, batches: int) -> int:
    """Return how many of the micro-batches of the current epoch are done; 0 at its end."""
    epoch = state.epoch or 0.0
    return round((epoch - int(epoch)) * batches) % batches


def _multiplied(optimizer: torch.optim.Optimizer, factor: Callable[[], float]) -> list[Any]:
    """Return hooks that multiply every learning rate during the optimizer's step only; schedulers see the original."""
    own: list[Any] = []

    def before(*_: Any) -> None:
        own[:] = [group["lr"] for group in optimizer.param_groups]
        for group, lr in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = lr * factor()

    def after(*_: Any) -> None:
        for group, lr in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = lr

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
