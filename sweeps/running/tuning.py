"""Connect a sweep to Ray Tune, which asks for trials, runs them on reused actors, and reports when one ends.

Tune copies and pickles its hooks; they therefore hold only the number of their run, which itself stays in this process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from cbs.trial.config import COMMAND, TrialConfig
from sweeps.running.cluster import check_home
from sweeps.running.resources import Resources, check_placement
from sweeps.running.run import SweepRun
from sweeps.running.scratch import check_room, remove_folder, temporary_folder
from sweeps.running.trainable import Trainable
from sweeps.running.worker import Setup

HOME_SECONDS = 2.0
"""Seconds between two checks that Ray is alive."""
MOST_SILENCE = 300.0
"""Seconds without a message from any worker after which a private Ray is assumed to have none; each worker sends two a
second, whatever its trial does. A cluster may first have to find a node."""

PENDING = "TUNE_MAX_PENDING_TRIALS_PG"
"""Variable of Ray Tune: how many trials may wait for their actors. It is one by default, and every actor then waits for
the imports of the one before it."""

_runs: dict[int, Tuning] = {}
_numbers = itertools.count()


class Tuning:
    """State of a search that runs on one Ray.

    Attributes:
        workers: most trials that Tune may hold at a time; ``None`` for as many as it asks for.
        trials: trials that were handed to Tune and have not come back, by Tune's own id.
        silent: seconds since a worker was heard, counted in turns, because a clock also runs while this process is
            stopped.
    """

    def __init__(self, run: SweepRun, resources: Resources, room: int | None = None) -> None:
        self.run, self.workers = run, resources.workers or room
        self.silent, self._patience = 0.0, MOST_SILENCE if resources.address is None else math.inf
        self.trials: dict[str, TrialConfig] = {}
        self._looked = time.monotonic()

    def check_home(self) -> None:
        """Check from time to time whether Ray is alive.

        Raises:
            EngineLost: if it is not.
        """
        if time.monotonic() - self._looked >= HOME_SECONDS:
            self._looked = time.monotonic()
            self.silent += HOME_SECONDS
            if self.trials and self.silent >= self._patience:
                self.run.fatal = (
                    f"no worker of Ray was heard for {self.silent:g} s; see whether this user may have more processes "
                    "and threads (ulimit -u) and memory (ulimit -v)"
                )
            check_home()


def tune_search(run: SweepRun, resources: Resources) -> None:
    """Run the search to its end on the connected Ray; return early on a fatal problem.

    Raises:
        ConfigError: if no node can hold a trial.
        EngineLost: if Ray dies.
        Unfinished: if there is no room for Ray's own files.
    """
    resources.check_devices(run.search.sweep.trial.device, command=run.search.sweep.trial.workload.name == COMMAND)
    gpus = resources.gpus_of_trial(run.search.sweep.trial.device)
    run.search.workers = check_placement(resources, gpus)
    setup = Setup(
        store=str(run.store.root.resolve()),
        path=str(Path.cwd()),
        threads=resources.cpus_per_trial,
        workers=resources.workers_per_trial,
        shard=resources.shard,
        nodes=resources.nodes_per_trial,
        launch=resources.launch,
        prune_factor=run.search.sweep.prune_factor,
        silence=run.silence,
        keep=run.search.sweep.start.keep,
    )
    bundles = [{"CPU": float(resources.cpus), "GPU": gpus}] * resources.nodes_per_trial
    scratch, number = temporary_folder(), next(_numbers)
    # one that waits takes the place of the next that ends at once; a cluster may still grow
    private, room = resources.address is None, run.search.workers
    _runs[number] = Tuning(run, resources, room + 1 if private else None)
    try:
        tuner = tune.Tuner(
            tune.with_resources(Trainable, tune.PlacementGroupFactory(bundles, strategy="STRICT_SPREAD")),
            param_space={"setup": setup, "trial": None, "best_steps": None},
            tune_config=tune.TuneConfig(search_alg=Queue(number), num_samples=-1, reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=str(scratch),
                name="sweep",
                verbose=0,
                stop=StopWhenDone(number),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        with _started_together(room if private else 1):
            tuner.fit()
    except Exception as error:
        # Tune raises many types of error when Ray is gone; any other error is our own.
        check_room(error)
        check_home(error)
        raise
    finally:
        del _runs[number]
        remove_folder(scratch)


@contextlib.contextmanager
def _started_together(count: int) -> Iterator[None]:
    """Let so many actors start at a time, unless the user said how many."""
    ours = PENDING not in os.environ
    if ours:
        os.environ[PENDING] = str(count)
    try:
        yield
    finally:
        if ours:
            del os.environ[PENDING]


class Queue(Searcher):  # type: ignore[misc]
    """Hands the trials of the search to Tune, and their outcomes back to the search."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial, ``None`` to wait, or ``Searcher.FINISHED``."""
        tuning = _runs[self._number]
        if tuning.run.over:
            return Searcher.FINISHED
        if tuning.workers is not None and len(tuning.trials) >= tuning.workers:
            return None
        started = tuning.run.next()
        if started is None:
            return None
        tuning.trials[trial_id], best_steps = started
        return {"trial": json.dumps(tuning.trials[trial_id].to_dict()), "best_steps": best_steps}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Take in a heartbeat."""
        tuning = _runs[self._number]
        tuning.silent = 0.0
        config = tuning.trials.get(trial_id)
        if config is not None and "where" in result:
            tuning.run.heard(config, *result["where"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        tuning = _runs[self._number]
        tuning.silent = 0.0
        config = tuning.trials.pop(trial_id)
        if error or result is None or not {"status", "died", "fatal"} & result.keys():
            tuning.run.lost(config)
        else:
            tuning.run.take_in(config, result)

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file, which Tune expects; the results folder is the state of the sweep."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """See :meth:`save`."""


class StopWhenDone(tune.Stopper):  # type: ignore[misc]
    """Calls the observers at every turn of Tune's loop, and ends the experiment after an error that every further trial
    would have too."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        tuning = _runs[self._number]
        tuning.run.look_around()
        tuning.check_home()
        return tuning.run.fatal is not None
