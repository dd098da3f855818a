"""A batch-size schedule in a training loop: the stage of the next step, and the observations of a closed-loop rule."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.interval import ratio_interval
from cbs.optimizers.scaling import Rescaling
from cbs.schedules.batch_size import (
    GRAD_SQ_NORM,
    MATCHED_NOISE_SCALE,
    ClosedLoop,
    Observed,
    OpenLoop,
    RunSettings,
    Stage,
    build_batch_schedule,
)
from cbs.training.parts import Part, TrainingStep
from cbs.trial.config import TrialConfig
from cbs.trial.record import GeometryColumns

SEEN = ("seen_low", "seen", "seen_high")
"""Columns of the steps of closed-loop runs: the estimate and interval that the rule observed after a step at which it
looked, NaN at all other steps."""

_NOTHING = (math.nan,) * 3  # One for each of SEEN

LR_FACTOR = "lr_factor"  # Column of the steps of runs with a batch schedule: factor of the learning rate


class BatchSizes(Part):
    """The batch-size schedule of one run, and the state of a closed-loop rule.

    Before a step with another batch size, optimizer options that are given in examples are set again. After a step
    whose noise scale was measured, a closed-loop rule receives its moments.

    Args:
        config: configuration of the trial.
        tokens_per_example: number of tokens in an example of the workload, or ``None``.
        optimizer: optimizer of the trial.
        geometries: geometries whose moments are recorded in columns; the first is ``l2``.

    Attributes:
        multiplier: factor of the learning rate as a function of the examples seen, where the schedule defines its own.
        stage: current stage; for a closed-loop rule its latest decision.

    Raises:
        ConfigError: if the schedule does not suit the trial, a closed-loop rule has no probe, or an option given in
            examples cannot follow the batch size.
    """

    def __init__(
        self,
        config: TrialConfig,
        tokens_per_example: int | None,
        optimizer: torch.optim.Optimizer,
        geometries: Sequence[GeometryColumns] = (),
    ) -> None:
        self._schedule = schedule = build_batch_schedule(config.batch_schedule, run_of(config, tokens_per_example))
        self.multiplier = schedule.multiplier
        self._pending: list[Tensor] = []
        self._held = np.empty((0, 2))
        self.stage = schedule.stage(0) if isinstance(schedule, OpenLoop) else schedule.first
        self.planned = (LR_FACTOR,) if config.batch_schedule else ()
        if isinstance(schedule, ClosedLoop):
            if not geometries:
                raise ConfigError("a closed-loop batch schedule needs a probe to observe the run; leave out probe=none")
            self._geometry = geometries[-1 if schedule.looks_at == MATCHED_NOISE_SCALE else 0]
            self.planned += SEEN
        self._lr, self._now = config.lr, Stage(config.batch_size)
        self._rescaling = Rescaling(config.optimizer, optimizer, config.lr, config.batch_size)
        if config.batch_schedule is not None:
            self._rescaling.to(
                config.batch_size, config.lr
            )  # raises now if a later change of the batch size would fail

    def at(self, examples: int) -> Stage:
        """Return the stage of the step that begins after this many examples."""
        if isinstance(self._schedule, OpenLoop):
            self.stage = self._schedule.stage(examples)
        return self.stage

    def begin(self, step: TrainingStep) -> None:
        if step.stage.batch_size != self._now.batch_size:
            self._now = step.stage
            self._rescaling.to(step.stage.batch_size, self._lr * step.stage.lr_factor)
        if self.planned:
            step.planned[LR_FACTOR] = step.stage.lr_factor

    def before_step(self, step: TrainingStep) -> None:
        if isinstance(self._schedule, ClosedLoop):
            seen = self._look(self._schedule, step) if step.noise_measured else _NOTHING
            step.planned.update(zip(SEEN, seen, strict=True))

    def _look(self, schedule: ClosedLoop, step: TrainingStep) -> tuple[float, float, float]:
        """Store the moments of a step; when enough are stored, let the rule observe them and decide.

        Returns:
            The values of the columns :data:`SEEN`; NaN where the rule did not look, an end of the interval is open, or
            the estimate is undefined.
        """
        if step.examples < schedule.from_examples:
            return _NOTHING
        moments = (step.values[column] for column in (self._geometry.signal, self._geometry.noise))
        self._pending.append(torch.stack([moment.detach().double() for moment in moments]))
        if len(self._held) + len(self._pending) < schedule.measurements:
            return _NOTHING
        rows = self._moments()
        self._held, self._pending = np.empty((0, 2)), []
        seen = observed(schedule, self.stage, rows[:, 0], rows[:, 1], self._geometry.exponent)
        self.stage = schedule.decide(step.examples, seen)
        low, value, high = (math.nan if end is None else end for end in (seen.low, seen.value, seen.high))
        return low, value, high

    def state(self) -> dict[str, Any]:
        """Return the current stage, the stage of the latest change, and the moments since the last look, shape
        ``[steps, 2]``.
        """
        stage, now = ([stage.batch_size, stage.lr_factor] for stage in (self.stage, self._now))
        return {"stage": stage, "now": now, "moments": torch.from_numpy(self._moments())}

    def load_state(self, state: dict[str, Any]) -> None:
        self.stage, self._now = Stage(*state["stage"]), Stage(*state["now"])
        self._held, self._pending = state["moments"].numpy(), []
        self._rescaling.resume(self._now.batch_size, self._lr * self._now.lr_factor)

    def _moments(self) -> np.ndarray:
        """Return signal and noise of the steps measured since the last look, shape ``[steps, 2]``."""
        if not self._pending:
            return self._held
        return np.concatenate([self._held, torch.stack(self._pending).cpu().numpy()])


def run_of(config: TrialConfig, tokens_per_example: int | None) -> RunSettings:
    """Return the settings of a trial that a batch schedule needs."""
    return RunSettings(
        batch_size=config.batch_size,
        examples=config.max_examples,
        lr_schedule=config.schedule,
        tokens_per_example=tokens_per_example,
    )


def observed(schedule: ClosedLoop, stage: Stage, signal: np.ndarray, noise: np.ndarray, exponent: int = 1) -> Observed:
    """Return what a rule observes from the moments of consecutive measured steps, each of shape ``[steps]``.

    The interval is that of :func:`cbs.noise_scale.interval.ratio_interval`; |G|^2 is treated as a ratio with
    denominator 1. The observation is empty where a moment is not finite.
    """
    if schedule.looks_at == GRAD_SQ_NORM:
        signal, noise, exponent = np.ones_like(signal), signal, 1
    if not (np.isfinite(signal).all() and np.isfinite(noise).all()):
        return Observed(stage=stage, low=None, value=None, high=None)
    over, under = float(noise.mean()), float(signal.mean())
    interval = ratio_interval(signal, noise, exponent=exponent, confidence=schedule.confidence)
    value = (over / under) ** exponent if over > 0 and under > 0 else None
    return Observed(stage=stage, low=interval.low, value=value, high=interval.high)
