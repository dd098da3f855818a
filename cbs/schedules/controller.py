"""Batch sizes that follow the measured noise scale inside a user's own training loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cbs.errors import ConfigError, reason
from cbs.noise_scale import NoiseScaleMeter, matched
from cbs.noise_scale.distributed import initialized
from cbs.schedules.accumulation import AccumulationPlan, NoiseReading, replay, row_of
from cbs.schedules.batch_size import Stage
from cbs.schedules.batch_size.base import MATCHED_NOISE_SCALE


class BatchSizeController:
    r"""Advises on, or controls, gradient accumulation by a rule that observes the noise scale.

    ::

        meter = NoiseScaleMeter(model)
        controller = BatchSizeController(
            meter, optimizer, rule="norm_test(theta=0.5)", micro_batch_size=8, micro_batches=4, cap=512, drives=True
        )
        while controller.examples < budget:
            for _ in range(controller.micro_batches):
                (loss(model, next(batches)) / controller.micro_batches).backward()
            controller.step()  # in place of meter.step()
            optimizer.step()
            optimizer.zero_grad()

    The rules are those of :mod:`cbs.schedules.batch_size` that observe the noise scale: they act on the lower end of
    its interval over the steps since the previous observation. Batch sizes are whole micro-batches on every rank, never
    exceed ``cap`` and never fall.

    Args:
        noise_scale_meter: meter that measures the steps; without a window. From here on it belongs to the controller,
            which resets it at every observation. A second meter can keep averages over the run.
        optimizer: if the controller drives, this optimizer's learning rates are multiplied during its ``step`` by the
            :attr:`lr_factor` with which the step began. Without it, the loop has to do that. Rules that observe the
            geometry of the optimizer need it, too.
        rule: see :class:`~cbs.schedules.accumulation.AccumulationPlan`, also for the next five.
        micro_batch_size: examples per pass and rank.
        micro_batches: number of passes in the first steps.
        world_size: number of ranks; by default that of the process group.
        cap: largest batch size.
        warmup_examples: length of the warmup, during which nothing is decided.
        drives: whether :attr:`micro_batches` changes. If not, :attr:`advised` holds what the rule would do.
        deferred: whether a decision waits for :meth:`adopt`, in loops that cannot change between any two steps.
        lr_in_examples: whether the schedule of the learning rate counts examples instead of steps, so that no warning
            is needed.
        log: file for :attr:`rows`, one JSON object per line, overwritten by the first rank.

    Attributes:
        stage: current batch size and learning-rate factor.
        advised: latest decision of the rule.
        steps, examples: steps and examples so far, over all ranks.
        rows: the settings, and for every observation what was observed and decided;
            :func:`cbs.schedules.accumulation.replay` repeats the decisions.

    Raises:
        ConfigError: if an argument is invalid, or the meter does not suit the rule.
    """

    def __init__(
        self,
        noise_scale_meter: NoiseScaleMeter,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        micro_batch_size: int,
        micro_batches: int,
        cap: int,
        rule: str = "doubling",
        world_size: int | None = None,
        warmup_examples: int = 0,
        drives: bool = False,
        deferred: bool = False,
        lr_in_examples: bool = False,
        log: str | Path | None = None,
    ) -> None:
        if world_size is None:
            world_size = dist.get_world_size() if initialized() else 1
        self._settings = AccumulationPlan(
            rule=rule, micro_batch_size=micro_batch_size, micro_batches=micro_batches, world_size=world_size, cap=cap,
            warmup_examples=warmup_examples,
        )  # fmt: skip
        self.meter = noise_scale_meter
        self._geometry = _geometry(noise_scale_meter, self._settings, optimizer)
        self._optimizer, self._drives, self._deferred = optimizer, drives, deferred
        self._warned = {"schedule": lr_in_examples, "batch": False, "factor": optimizer is not None, "nothing": False}
        self.stage = self.advised = Stage(self._settings.first)
        self.steps = self.examples = self._measured = 0
        self.rows: list[dict[str, Any]] = [asdict(self._settings)]
        self._log = None if log is None or (initialized() and dist.get_rank() > 0) else Path(log)
        self._write("w")
        self._hooks: list[Any] = []
        self._of_step = self.stage.lr_factor
        if drives and optimizer is not None:
            # With deferred decisions, step() of the controller may run inside the optimizer's step.
            self._hooks = multiplied(optimizer, lambda: self.stage.lr_factor if deferred else self._of_step)

    @property
    def batch_size(self) -> int:
        """Number of examples in the next step, over all ranks."""
        return self.stage.batch_size

    @property
    def unit(self) -> int:
        """Number of examples in one micro-batch on every rank, over all ranks."""
        return self._settings.unit

    @property
    def micro_batches(self) -> int:
        """Number of forward and backward passes in the next step, on every rank."""
        return self.stage.batch_size // self.unit

    @property
    def lr_factor(self) -> float:
        """Factor of the learning rate of the next step, relative to that at the first batch size."""
        self._warned["factor"] = True
        return self.stage.lr_factor

    def step(self, *, loss_scale: float | Tensor = 1.0, gradients_unscaled: bool = False) -> None:
        """Measure the step whose gradients are in ``.grad``, in place of the meter's own ``step``; observe and decide
        when due.

        Args:
            loss_scale: see :meth:`cbs.noise_scale.NoiseScaleMeter.step`.
            gradients_unscaled: see :meth:`cbs.noise_scale.NoiseScaleMeter.step`.

        Raises:
            ConfigError: if the meter raises one.
        """
        watching, self._of_step = self.meter.probe.watching, self.stage.lr_factor
        self.meter.step(loss_scale=loss_scale, gradients_unscaled=gradients_unscaled)
        self.steps += 1
        self.examples += self.stage.batch_size
        if not watching:
            return
        if self.examples < self._settings.schedule.from_examples:
            self.meter.reset()
            return
        self._measured += 1
        if self._measured >= self._settings.schedule.measurements:
            self._look()

    def adopt(self) -> None:
        """Apply the rule's latest decision; the next observation uses the steps from here on."""
        if self.advised == self.stage:
            return
        self.meter.reset()
        self._measured = 0
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        if any("initial_lr" in group for group in groups):
            self._warn(
                "schedule",
                "the optimizer has a learning-rate scheduler, and steps now hold more examples: a schedule that counts "
                "steps falls too late; let it count examples (and pass lr_in_examples=True)",
            )
        self.stage = self.advised

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a later process needs to make the same decisions, including the meter's averages."""
        numbers = {"steps": self.steps, "examples": self.examples, "measured": self._measured}
        both = {"stage": self.stage, "advised": self.advised}
        stages = {name: [stage.batch_size, stage.lr_factor] for name, stage in both.items()}
        return numbers | stages | {"rows": list(self.rows), "meter": self.meter.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`, and rewrite the log file.

        Raises:
            ConfigError: if it belongs to a controller with other settings.
        """
        settings = asdict(self._settings)
        saved = (state.get("rows") or [{}])[0]
        others = [name for name, value in settings.items() if saved.get(name) != value]
        if others:
            raise ConfigError(
                f"the saved controller has other settings ({', '.join(others)}): build it with the same arguments"
            )
        self.meter.load_state_dict(state["meter"])
        self.meter.probe.start_at(state["steps"])
        self.steps, self.examples, self._measured = state["steps"], state["examples"], state["measured"]
        self.stage, self.advised = Stage(*state["stage"]), Stage(*state["advised"])
        self.rows = list(state["rows"])
        self._write("w")

    def detach(self) -> None:
        """Stop multiplying the optimizer's learning rates."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    replay = staticmethod(replay)

    def _look(self) -> None:
        seen = self.meter.estimate(geometry=self._geometry, confidence=self._settings.schedule.confidence)
        self.meter.reset()
        self._measured = 0
        taken = seen.examples / seen.steps if seen.steps else None
        if not self._drives and taken is not None:
            # The user may follow the advice, so take the batch size that the steps really had.
            self.stage = Stage(max(1, round(taken / self.unit)) * self.unit, self.stage.lr_factor)
        look = NoiseReading(
            step=self.steps, examples=self.examples, batch_size=self.stage.batch_size, lr_factor=self.stage.lr_factor,
            measured=seen.steps, taken=taken, low=seen.low, value=seen.value, high=seen.high, note=seen.note,
        )  # fmt: skip
        self.advised = self._settings.decide(look)
        self.rows.append(row_of(look, self.advised))
        self._write("a")
        if taken is None:
            self._warn("nothing", f"no step could be measured, so the batch size stays as it is: {seen.note}")
        elif not self._settings.as_set(look):
            self._warn(
                "batch",
                f"steps take {taken:g} examples, but {look.batch_size} are set, in micro-batches of "
                f"{self.unit}: the batch size stays as it is",
            )
        if self._drives and self.stage.lr_factor != 1.0:
            self._warn("factor", "the rule changes the learning rate: pass the optimizer, or multiply by lr_factor")
        if self._drives and not self._deferred:
            self.adopt()

    def _warn(self, what: str, line: str) -> None:
        """Warn once about each problem."""
        if not self._warned[what]:
            self._warned[what] = True
            self.meter.probe.tell(line)

    def _write(self, mode: str) -> None:
        if self._log is None:
            return
        rows = self.rows if mode == "w" else self.rows[-1:]
        try:
            with self._log.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        except OSError as error:
            raise ConfigError(f"cannot write the log {self._log}: {reason(error)}; pass another file as log=") from None


def _geometry(meter: NoiseScaleMeter, settings: AccumulationPlan, optimizer: torch.optim.Optimizer | None) -> str:
    """Return the name of the geometry that the rule observes.

    Raises:
        ConfigError: if the meter does not measure it, has a window, or needs more micro-batches.
    """
    name = "l2"
    if settings.schedule.looks_at == MATCHED_NOISE_SCALE:
        if optimizer is None:
            raise ConfigError(f"rule {settings.rule!r} observes the geometry of the optimizer; pass the optimizer")
        name = matched(optimizer)
    if name not in meter.geometries:
        raise ConfigError(
            f"rule {settings.rule!r} observes geometry {name!r}, but the meter has {', '.join(meter.geometries)}; "
            f"build the meter with geometry={name!r}"
        )
    if meter.window is not None and meter.window >= 1:
        raise ConfigError("a rule observes only the steps since its last decision: build the meter without window")
    meter.average_over(None)
    if settings.micro_batches < meter.probe.micro_batches:
        raise ConfigError(
            f"source {meter.probe.source!r} needs {meter.probe.micro_batches} micro-batches in a step, but there is "
            f"{settings.micro_batches}; raise micro_batches, or pass another source"
        )
    return name


def multiplied(optimizer: torch.optim.Optimizer, factor: Callable[[], float]) -> list[Any]:
    """Register hooks that multiply every learning rate during the optimizer's step only, so that schedulers do not see
    it.
    """
    own: list[Any] = []

    def before(*_: Any) -> None:
        own[:] = [group["lr"] for group in optimizer.param_groups]
        for group, lr in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = lr * factor()

    def after(*_: Any) -> None:
        for group, lr in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = lr

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
