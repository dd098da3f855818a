"""One run, what is known about it and its curve -> the record of a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.read.importers.base import Run
from analysis.read.importers.curve import Curve
from analysis.read.importers.settings import Settings
from cbs.config import Choice, TrialConfig
from cbs.errors import DataError
from cbs.record import Measurement, TrialResult, TrialStatus, WorkloadInfo

ENDED_EARLY = (TrialStatus.DIVERGED, TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY, TrialStatus.PRUNED)
"""What a source may say of a run that has no evaluation, or of one that its curve does not tell."""


def trial(run: Run, facts: Mapping[str, Any], curve: Curve, settings: Settings) -> TrialResult:
    """The record of a run.

    What it was trained with beyond the facts is not known: schedule, evaluation plan and precision of the
    configuration stand at their defaults and mean nothing. There are no per-step columns, and the training loss of an
    evaluation is NaN.

    Raises:
        DataError: if the curve has no point after step 0 and the run is not said to have ended early.
    """
    steps = [int(step) for step in curve.steps]
    last = steps[-1] if steps else 0
    if last < 1 and facts["status"] not in ENDED_EARLY:
        raise DataError(
            f"run {run.name} ({run.place}) has no value of {settings.metric!r} after step 0; leave it out, or give it "
            "the status FAILED"
        )
    target = settings.as_target()
    crossing = target.crossing(steps, curve.values.tolist())
    status = _status(facts["status"], curve, crossing)
    config = TrialConfig(
        workload=Choice(name=facts["workload"]),
        optimizer=Choice(name=facts["optimizer"]),
        lr=facts["lr"],
        batch_size=facts["batch_size"],
        seed=facts["seed"],
        target=target,
        max_steps=max(last, run.max_steps or 1),
        probe=None,
    )
    evaluations = [
        Measurement(
            step=step, examples=step * config.batch_size, value=float(value), train_loss=math.nan,
            lr=config.lr if step else 0.0,
        )
        for step, value in zip(steps, curve.values, strict=True)
    ]  # fmt: skip
    workload: dict[str, Any] = {
        "example_unit": settings.example_unit,
        "tokens_per_example": settings.tokens_per_example,
        "metric_unit": settings.metric_unit,
        "parameters": facts["parameters"],
        "data_hash": None,
    }
    return TrialResult(
        config=config,
        status=status,
        steps_to_target=crossing if status is TrialStatus.REACHED else None,
        evaluations=evaluations,
        steps={"step": np.empty(0, np.int64), "examples": np.empty(0, np.int64), "train_loss": np.empty(0)},
        workload=WorkloadInfo(**workload),
        message=f"imported from run {run.name}",
    )


def _status(stated: TrialStatus | None, curve: Curve, crossing: float | None) -> TrialStatus:
    if stated in ENDED_EARLY:
        return stated
    if len(curve.values) and not math.isfinite(curve.values[-1]):
        return TrialStatus.DIVERGED
    return TrialStatus.BUDGET_EXHAUSTED if crossing is None else TrialStatus.REACHED
