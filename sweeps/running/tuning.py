"""Connect a sweep to Ray Tune, which asks for trials, runs them on reused actors, and reports when one ends.

Tune copies and pickles its hooks; they therefore hold only the number of their run, which itself stays in this process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from cbs.errors import Unfinished
from cbs.trial.config import COMMAND, TrialConfig
from sweeps.running.cluster import EngineLost, PrestartedRay, check_home, connected
from sweeps.running.control import address, silent, watched
from sweeps.running.resources import Resources, check_placement
from sweeps.running.run import Outcome, Runs, SweepRun
from sweeps.running.scratch import check_room, remove_folder, temporary_folder
from sweeps.running.trainable import Trainable
from sweeps.running.worker import Setup

HOME_SECONDS = 2.0  # Seconds between two checks that Ray is alive
# Seconds without a message from any worker after which a private Ray is assumed to have none; each worker sends two a
# second, whatever its trial does. A cluster may first have to find a node.
MOST_SILENCE = 300.0

PENDING = "TUNE_MAX_PENDING_TRIALS_PG"
"""Variable of Ray Tune: how many trials may wait for their actors. It is one by default, and every actor then waits for
the imports of the one before it."""

_runs: dict[int, Tuning] = {}
_numbers = itertools.count()


class Tuning:
    """State of the sweeps that one experiment of Tune runs: those whose trials the same workers can run.

    Attributes:
        runs: the sweeps, of which the present one has trials to run.
        setup: what the workers know of the sweep.
        bundles: resources of a trial, node by node.
        room: number of trials that this machine runs at once; ``None`` for a cluster, which may grow.
        trials: trials that were handed to Tune and have not come back, by Tune's own id.
        idle: workers that wait for the next trial, by Tune's own id. To Tune they run a trial, as it would end all
            but one of them, and a worker takes seconds to start.
        silent: seconds since a worker was heard, counted in turns, because a clock also runs while this process is
            stopped.
        over: whether no further trial will be handed to Tune.
        problem: error in the choice of the next sweep.
    """

    def __init__(self, runs: Runs[Any], resources: Resources) -> None:
        self.runs, self._resources = runs, resources
        self.setup, self.bundles, held = self._asked()
        self.room = held if resources.address is None else None
        # one that waits takes the place of the next that ends at once
        self._most = resources.workers or (math.inf if self.room is None else self.room + 1)
        self.trials: dict[str, TrialConfig] = {}
        self.idle: set[str] = set()
        self._busiest = 0
        self.silent, self._patience = 0.0, MOST_SILENCE if resources.address is None else math.inf
        self.over = False
        self.problem: Exception | None = None
        self._looked = time.monotonic()

    @property
    def run(self) -> SweepRun:
        """The present sweep."""
        assert self.runs.run is not None
        return self.runs.run

    def _asked(self) -> tuple[Setup, list[dict[str, float]], int]:
        """Return setup and bundles of the present sweep, and how many of its trials run at once.

        Raises:
            ConfigError: if no node can hold a trial.
        """
        run, resources = self.run, self._resources
        sweep = run.search.sweep
        resources.check_devices(sweep.trial.device, command=sweep.trial.workload.name == COMMAND)
        gpus = resources.gpus_of_trial(sweep.trial.device)
        run.search.workers = check_placement(resources, gpus)
        setup = Setup(
            store=str(run.store.root.resolve()),
            path=str(Path.cwd()),
            threads=resources.cpus_per_trial,
            workers=resources.workers_per_trial,
            shard=resources.shard,
            nodes=resources.nodes_per_trial,
            launch=resources.launch,
            prune_factor=sweep.prune_factor,
            silence=run.silence,
            keep=sweep.start.keep,
        )
        bundles = [{"CPU": float(resources.cpus), "GPU": gpus}] * resources.nodes_per_trial
        return setup, bundles, run.search.workers

    def next(self, tune_id: str) -> Any:
        """Return what Tune is to run next, ``None`` to wait, or ``Searcher.FINISHED``."""
        while not self.ended and self.run.over and not self.trials:
            self._turn()
        if self.ended:
            return Searcher.FINISHED
        started = self.run.next() if len(self.trials) < self._most and not self.run.over else None
        if started is not None:
            self.trials[tune_id], best_steps = started
            self._busiest = max(self._busiest, len(self.trials))
            return {"trial": json.dumps(self.trials[tune_id].to_dict()), "best_steps": best_steps}
        if self.room is not None and len(self.trials) + len(self.idle) < min(self.room, self._busiest):
            self.idle.add(tune_id)
            return {"trial": None, "best_steps": None}
        return None

    def _turn(self) -> None:
        """Turn to the next sweep, which may need other workers."""
        before = self.setup, self.bundles
        try:
            self.runs.advance()
            self.over = self.runs.run is None or self._asked()[:2] != before
        except Exception as problem:  # noqa: BLE001 - raised again once Tune, which would wrap it, has ended
            self.over, self.problem = True, problem

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be handed to Tune."""
        return self.over or self.run.fatal is not None

    def freed(self, tune_id: str) -> bool:
        """Return whether a worker that waits is to stop waiting, as there is a trial for it or all are to end."""
        taken = self.room is not None and len(self.trials) + len(self.idle) > self.room
        free = tune_id in self.idle and (taken or self.ended)
        if free:
            self.idle.remove(tune_id)
        return free

    def back(self, tune_id: str) -> TrialConfig | None:
        """Take back what was handed to Tune; ``None`` if it was a worker that waited."""
        self.idle.discard(tune_id)
        return self.trials.pop(tune_id, None)

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


def tune_search(runs: Runs[Any], resources: Resources) -> None:
    """Run the present sweep on the connected Ray, and those after it that the same workers can run; return early on a
    fatal problem.

    Raises:
        CbsError: as the sweeps choose their next one.
        ConfigError: if no node can hold a trial.
        EngineLost: if Ray dies.
        Unfinished: if there is no room for Ray's own files.
    """
    tuning, number = Tuning(runs, resources), next(_numbers)
    scratch = temporary_folder()
    _runs[number] = tuning
    try:
        tuner = tune.Tuner(
            tune.with_resources(Trainable, tune.PlacementGroupFactory(tuning.bundles, strategy="STRICT_SPREAD")),
            param_space={"setup": tuning.setup, "trial": None, "best_steps": None},
            tune_config=tune.TuneConfig(search_alg=Queue(number), num_samples=-1, reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=str(scratch),
                name="sweep",
                verbose=0,
                stop=StopWhenDone(number),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        with _started_together(tuning.room or 1):
            tuner.fit()
    except Exception as error:
        if tuning.problem is not None:
            raise tuning.problem from error
        # Tune raises many types of error when Ray is gone; any other error is our own.
        check_room(error)
        check_home(error)
        raise
    finally:
        del _runs[number]
        remove_folder(scratch)
    if tuning.problem is not None:
        raise tuning.problem


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
        return _runs[self._number].next(trial_id)

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
        config = tuning.back(trial_id)
        if config is None:
            return
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
        return _runs[self._number].freed(trial_id)

    def stop_all(self) -> bool:
        tuning = _runs[self._number]
        if tuning.runs.run is None:
            return False
        tuning.run.look_around()
        tuning.check_home()
        return tuning.run.fatal is not None


MAX_ENGINES = 3  # How many times in a row Ray is started again without any trial finishing in between


def run_all(runs: Runs[Outcome], resources: Resources, ahead: PrestartedRay | None = None) -> Outcome:
    """Run sweeps that follow one another, and return the outcome of the last.

    Args:
        runs: the sweeps.
        resources: where they run.
        ahead: the Ray of the command.

    Raises:
        CbsError: as :func:`run_search`, and as the sweeps choose their next one.
    """
    while (run := runs.run) is not None:
        try:
            run_search(runs, resources, ahead)
        except BaseException as error:
            runs.end(error)
            raise
        if runs.run is run:
            runs.advance()
    return runs.outcome


def run_search(runs: Runs[Any], resources: Resources, ahead: PrestartedRay | None = None) -> None:
    """Run the present sweep to its end, starting Ray again when it dies; return early on a fatal problem.

    Sweeps that the same workers can run follow without a pause, so that another one may be present at the end.

    Raises:
        ConfigError: if a cluster cannot be reached, or no node can hold a trial.
        Unfinished: if Ray dies repeatedly, or a Ray that was not started here dies, or its files have no room.
    """

    def last_words() -> None:
        if runs.run is not None:
            runs.run.last_words()
        else:
            words = "cbs: Ray has died after the last trial; nothing is lost: give the same command again"
            print(words, file=sys.stderr, flush=True)

    lost, finished, ours = 0, 0, True
    while runs.run is not None:
        try:
            with (
                connected(resources, *(() if ahead is None else (ahead.taken(), ahead.keep))) as ours,
                watched(functools.partial(silent, address()), last_words),
            ):
                tune_search(runs, resources)
            return
        except EngineLost as error:
            if (run := runs.run) is None:
                return  # workers were idle, and nothing is left to run
            done = run.search.all_counts()[0]
            lost, finished = (lost + 1 if done == finished else 1), done
            if not ours or resources.address is not None or lost > MAX_ENGINES:
                raise Unfinished(f"Ray has died ({error})") from error
            run.note("Ray has died; it is started again, and trials resume from their checkpoints")
            run.all_lost()
            if run.over:
                return
