"""Judge batch schedules by what their runs are compared at: steps to a target, or the metric at the end of a budget."""

import os
from collections.abc import Sequence

from analysis.config import DEFAULT, AnalysisConfig
from analysis.read.results import load
from analysis.read.throughput import Throughput
from cbs.errors import ConfigError
from extensions.schedules.judge.judged import Schedules, schedules
from extensions.schedules.losses import ScheduleLosses, schedule_losses


def judge(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float] | None = None,
    metric: str | None = None,
    throughput: Throughput | None = None,
    devices: int = 1,
) -> Schedules | ScheduleLosses:
    """Compare the batch schedules of a sweep with its constant batch sizes: see :func:`.judged.schedules`, and
    :func:`extensions.schedules.losses.schedule_losses` where all trials end at a budget.

    Raises:
        ConfigError: if trials end at a budget, and something is asked that is about targets.
        ResultsError: as the two functions.
    """
    results = load(path, metric=metric)
    if any(group.stops_at_target for group in results.groups):
        return schedules(path, config, targets=targets, metric=metric, throughput=throughput, devices=devices)
    about_targets = {
        "--target NUMBER": bool(targets),
        "--definition": (config.definition, config.options) != (DEFAULT.definition, DEFAULT.options),
        "--throughput": throughput is not None,
        "--devices": devices != 1,
    }
    if given := [flag for flag, there in about_targets.items() if there]:
        raise ConfigError(f"{', '.join(given)}: these trials end at a budget, not at a target; leave it out")
    return schedule_losses(path, config, metric=metric)
