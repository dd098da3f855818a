"""Run sweeps to their ends, starting Ray again when it dies."""

from __future__ import annotations

import functools
import sys
from typing import Any

from cbs.errors import Unfinished
from sweeps.running.cluster import EngineLost, connected
from sweeps.running.control import address, silent, watched
from sweeps.running.prestart import PrestartedRay
from sweeps.running.resources import Resources
from sweeps.running.run import Outcome, Runs

MAX_ENGINES = 3
"""How many times in a row Ray is started again without any trial finishing in between."""


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
    from sweeps.running.tuning import tune_search

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
