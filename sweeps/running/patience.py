"""How long a trial may be silent before it is taken to hang; steps are timed where a hang or a crash can be told."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch

from cbs.errors import ConfigError
from sweeps.outlook.cost import Cost, measure_cost
from sweeps.running.child import Channel, Child, Died, Failed
from sweeps.spec.spec import Sweep

LEAST_SECONDS = 300.0
"""Data are loaded and a model is built before the first step."""
UNTIMED_SECONDS = 1800.0
"""Where no step was timed, or the first is compiled."""
MARGIN = 100.0
"""A step or an evaluation that takes so many times longer than planned is none."""


def patience(sweep: Sweep, cost: Cost | None) -> float:
    """Seconds without a step or an evaluation after which a trial of ``sweep`` is stopped, by its plan.

    Args:
        sweep: what is run.
        cost: of its steps; ``None`` where they were not timed.
    """
    if cost is None:
        return UNTIMED_SECONDS
    largest = max(sweep.batch_sizes)
    longest = max(max(step.fixed + step.per_example * largest, step.evaluation) for step in cost.steps.values())
    return max(UNTIMED_SECONDS if sweep.compile else LEAST_SECONDS, MARGIN * longest)


def timed_apart(
    sweep: Sweep, silence: float | None = None, child: Child | None = None, give_up: float = math.inf
) -> Cost | None:
    """:func:`sweeps.outlook.cost.measure_cost` in a process of its own; ``None`` also where that takes too long.

    Args:
        sweep: what is to be run.
        child: the process, which this ends; ``None`` for a new one.
        give_up: seconds after which it takes too long.
        silence: seconds after which the first steps are taken to hang; ``None`` for what a trial has at least.

    Raises:
        ConfigError: as there; or if the process dies or hangs, as that of every trial would.
    """
    seconds = silence or (UNTIMED_SECONDS if sweep.compile else LEAST_SECONDS)
    with child or Child() as child:
        try:
            return child.call("sweeps.running.patience:measured", sweep, str(Path.cwd()), silence=min(seconds, give_up))
        except (Died, Failed) as error:
            if isinstance(error, Died) and error.hung and give_up < seconds:
                return None
            raise ConfigError(
                f"the first steps on workload {sweep.workload.name!r}, which are timed, fail: {error}"
            ) from None


def measured(channel: Channel, sweep: Sweep, path: str) -> Cost | None:
    """In the child: see :func:`timed_apart`."""
    channel.say("imported")
    sys.path.insert(0, path)
    torch.set_num_threads(1)
    return measure_cost(sweep)
