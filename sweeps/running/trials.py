"""A trial as it runs in a process of its own: :mod:`sweeps.running.child` watches it, its result goes to the store."""

from __future__ import annotations

import functools
import sys
import time
import traceback
from typing import Any

import torch

from cbs.checkpoint import Checkpoint
from cbs.config import TrialConfig
from cbs.errors import CbsError, out_of_memory, reason
from cbs.record import Measurement, TrialResult, TrialStatus, without_curve
from cbs.store import Store
from cbs.training import run_trial
from sweeps.running.bounds import Bound
from sweeps.running.child import Channel
from sweeps.running.memory import keep_freed_memory
from sweeps.running.worker import Setup
from sweeps.search.pruning import beyond
from sweeps.workload import COMMAND, built

REPORT_SECONDS = 0.5
"""Least time between two signs of life."""


def run(channel: Channel, setup: Setup, trial: dict[str, Any], best_steps: float | None) -> dict[str, Any]:
    """Run a trial and store its result.

    Args:
        channel: hears ``step`` and ``value`` of the trial.
        setup: see there.
        trial: :meth:`cbs.config.TrialConfig.to_dict`.
        best_steps: fewest steps to target of the trial's cell so far.

    Returns:
        ``status``, and ``notes`` for a person.

    Raises:
        CbsError: for what every further trial would run into.
    """
    channel.say({"step": None})
    _prepare(setup)
    config = TrialConfig.from_dict(trial)
    watch = Watch(channel, Bound(setup.store, config.trial_id, best_steps), setup.prune_factor)
    store = Store(setup.store)
    checkpoint = Checkpoint(store.checkpoint_path(config))
    result = _result(config, watch, store, checkpoint, setup.path)
    store.save(result)
    if result.status.final:
        checkpoint.remove()
    return {"status": str(result.status), "notes": [f"{config.trial_id}: {note}" for note in checkpoint.notes]}


class Watch:
    """Says now and then where a trial is, and prunes it beyond the bound."""

    def __init__(self, channel: Channel, bound: Bound, prune_factor: float | None) -> None:
        self._channel, self._bound, self._prune_factor = channel, bound, prune_factor
        self._value: float | None = None
        self._said = -REPORT_SECONDS

    def alive(self, step: int) -> None:
        """A sign of life, not more often than every :data:`REPORT_SECONDS`."""
        now = time.monotonic()
        if now - self._said >= REPORT_SECONDS:
            self._said = now
            self._channel.say({"step": step, "value": self._value, "time": time.time()})

    def monitor(self, latest: Measurement) -> bool:
        """Whether the trial is beyond its bound."""
        self._value = latest.value
        return beyond(latest.step, self._bound.steps, self._prune_factor)


def _result(config: TrialConfig, watch: Watch, store: Store, checkpoint: Checkpoint, path: str) -> TrialResult:
    try:
        if config.workload.name == COMMAND:
            from sweeps.external.run import run_command

            folder = store.root / "runs" / config.trial_id
            return run_command(config, folder, path=path, monitor=watch.monitor, alive=watch.alive)
        workload = built(config.workload)
        return run_trial(config, workload=workload, monitor=watch.monitor, checkpoint=checkpoint, alive=watch.alive)
    except CbsError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model raises is the outcome of its trial
        if out_of_memory(error):
            return without_curve(config, TrialStatus.OUT_OF_MEMORY, reason(error))
        traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {reason(error)} ({frame.filename}:{frame.lineno})"
        return without_curve(config, TrialStatus.FAILED, what)


@functools.cache
def _prepare(setup: Setup) -> None:
    torch.set_num_threads(setup.threads)
    keep_freed_memory()
    sys.path.insert(0, setup.path)
