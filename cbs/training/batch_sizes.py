"""A batch-size schedule at work in a training loop: the stage of the coming step, and what a closed-loop rule sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.interval import ratio_interval
from cbs.schedules.batch_size.base import (
    GRAD_SQ_NORM,
    MATCHED_NOISE_SCALE,
    BatchSchedule,
    ClosedLoop,
    Observed,
    OpenLoop,
    Stage,
)
from cbs.trial.record import GeometryColumns

SEEN = ("seen_low", "seen", "seen_high")
"""Columns of the steps, of closed-loop runs: what the rule saw after a step at which it looked, NaN at all others."""

LR_FACTOR = "lr_factor"
"""Column of the steps, of runs with a batch schedule."""


class BatchSizes:
    """The schedule of one run, and how far a closed-loop one has got.

    Args:
        schedule: see :mod:`cbs.schedules.batch_size`.
        names: of the columns that the probe measures.
        geometries: which of them hold the moments of which geometry; the first is ``l2``.

    Attributes:
        stage: in force; of a closed-loop rule, what it decided last.

    Raises:
        ConfigError: if a closed-loop rule has no probe.
    """

    def __init__(
        self, schedule: BatchSchedule, names: Sequence[str] = (), geometries: Sequence[GeometryColumns] = ()
    ) -> None:
        self._schedule = schedule
        self._pending: list[Tensor] = []
        self._held = np.empty((0, 2))
        if isinstance(schedule, OpenLoop):
            self.stage = schedule.stage(0)
            return
        self.stage = schedule.first
        if not geometries:
            raise ConfigError("a batch schedule that looks at the run needs a probe; leave probe=none out")
        self._geometry = geometries[-1 if schedule.looks_at == MATCHED_NOISE_SCALE else 0]
        self._columns = [names.index(self._geometry.signal), names.index(self._geometry.noise)]

    @property
    def closed(self) -> bool:
        """Whether the schedule looks at the run."""
        return isinstance(self._schedule, ClosedLoop)

    def at(self, examples: int) -> Stage:
        """The stage of the step that begins after so many examples."""
        if isinstance(self._schedule, OpenLoop):
            self.stage = self._schedule.stage(examples)
        return self.stage

    def look(self, examples: int, measured: Sequence[Tensor]) -> tuple[float, float, float]:
        """Take in the moments of a step that was measured; look, and decide, when it is time.

        Args:
            examples: seen so far, this step's among them.
            measured: the columns of the probe.

        Returns:
            What :data:`SEEN` names; NaN where the rule did not look, an end is open, or nothing is defined.
        """
        schedule = self._schedule
        nothing = (float("nan"),) * 3
        if not isinstance(schedule, ClosedLoop) or examples < schedule.from_examples:
            return nothing
        self._pending.append(torch.stack([measured[column].detach().double() for column in self._columns]))
        if len(self._held) + len(self._pending) < schedule.measurements:
            return nothing
        moments = self._moments()
        self._held, self._pending = np.empty((0, 2)), []
        seen = observed(schedule, self.stage, moments[:, 0], moments[:, 1], self._geometry.exponent)
        self.stage = schedule.decide(examples, seen)
        low, value, high = (float("nan") if end is None else end for end in (seen.low, seen.value, seen.high))
        return low, value, high

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later process needs to go on."""
        return {"stage": [self.stage.batch_size, self.stage.lr_factor], "moments": torch.from_numpy(self._moments())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to :meth:`state_dict`."""
        self.stage = Stage(*state["stage"])
        self._held, self._pending = state["moments"].numpy(), []

    def _moments(self) -> np.ndarray:
        """Signal and noise of the steps measured since the last look, shape ``[steps, 2]``."""
        if not self._pending:
            return self._held
        return np.concatenate([self._held, torch.stack(self._pending).cpu().numpy()])


def observed(schedule: ClosedLoop, stage: Stage, signal: np.ndarray, noise: np.ndarray, exponent: int = 1) -> Observed:
    """What a rule sees in the moments of consecutive measured steps, each of shape ``[steps]``.

    The ends are those of :func:`cbs.noise_scale.interval.ratio_interval`; |G|^2 is taken as a ratio over ones. Nothing
    is seen where a moment is not finite.
    """
    if schedule.looks_at == GRAD_SQ_NORM:
        signal, noise, exponent = np.ones_like(signal), signal, 1
    if not (np.isfinite(signal).all() and np.isfinite(noise).all()):
        return Observed(stage=stage, low=None, value=None, high=None)
    over, under = float(noise.mean()), float(signal.mean())
    interval = ratio_interval(signal, noise, exponent=exponent, confidence=schedule.confidence)
    value = (over / under) ** exponent if over > 0 and under > 0 else None
    return Observed(stage=stage, low=interval.low, value=value, high=interval.high)
