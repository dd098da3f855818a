"""How long a trial may be silent before it is assumed to hang; and timing of steps in a child process, safe from
hangs."""

# Tests replace classes that annotations name, perhaps before this module is read.
from __future__ import annotations

import math
import sys
from pathlib import Path

import torch

from cbs.errors import ConfigError
from sweeps.outlook.cost import Cost, measure_cost, on_gpu
from sweeps.running.child import Channel, Child, Died, Failed
from sweeps.spec.spec import Sweep

LEAST_SECONDS = 300.0  # Shortest timeout, because data are loaded and a model is built before the first step
UNTIMED_SECONDS = 1800.0  # Timeout if no step was timed, or if the first step compiles the model
MARGIN = 100.0  # The timeout is this many times the planned duration of the longest step or evaluation


def patience(sweep: Sweep, cost: Cost | None) -> float:
    """Return the seconds without a step or an evaluation after which a trial of ``sweep`` is stopped.

    Args:
        sweep: the sweep.
        cost: measured cost of its steps; ``None`` if trials run elsewhere.
    """
    if cost is None or not cost.steps:
        return UNTIMED_SECONDS
    largest = max(sweep.axes.batch_sizes)
    longest = max(max(step.fixed + step.per_example * largest, step.evaluation) for step in cost.steps.values())
    return max(UNTIMED_SECONDS if sweep.trial.compile else LEAST_SECONDS, MARGIN * longest)


def timed_apart(
    sweep: Sweep, silence: float | None = None, child: Child | None = None, give_up: float = math.inf
) -> Cost:
    """Run :func:`sweeps.outlook.cost.measure_cost` in a child process; no step is timed either if it takes too long.

    Args:
        sweep: the sweep that will be run.
        silence: seconds after which the first steps are assumed to hang; ``None`` for the shortest timeout of a trial.
        child: the child process to use and close; ``None`` for a new one.
        give_up: seconds after which it is given up.

    Raises:
        ConfigError: if measuring raises it, or if the process dies or hangs, as the process of every trial would.
    """
    seconds = silence or (UNTIMED_SECONDS if sweep.trial.compile else LEAST_SECONDS)
    with child or Child() as child:
        try:
            return child.call("sweeps.running.patience:measured", sweep, str(Path.cwd()), silence=min(seconds, give_up))
        except (Died, Failed) as error:
            if isinstance(error, Died) and error.hung and give_up < seconds:
                return Cost(on_gpu=on_gpu(sweep))
            raise ConfigError(
                f"the first steps on workload {sweep.trial.workload.name!r}, which are timed, fail: {error}"
            ) from None


def measured(channel: Channel, sweep: Sweep, path: str) -> Cost:
    """Measure in the child process; see :func:`timed_apart`."""
    channel.say("imported")
    sys.path.insert(0, path)
    torch.set_num_threads(1)
    return measure_cost(sweep)
