"""Run a search to its end, starting Ray again when it dies."""

from __future__ import annotations

import functools

from cbs.errors import Unfinished
from sweeps.running.cluster import EngineLost, connected
from sweeps.running.control import address, silent, watched
from sweeps.running.prestart import PrestartedRay
from sweeps.running.resources import Resources
from sweeps.running.run import SweepRun

MAX_ENGINES = 3
"""How many times in a row Ray is started again without any trial finishing in between."""


def run_search(run: SweepRun, resources: Resources, ahead: PrestartedRay | None = None) -> None:
    """Run the search to its end, starting Ray again when it dies; return early on a fatal problem.

    Args:
        run: the sweep.
        resources: where it runs.
        ahead: the Ray of the command, which is left running for its next sweep.

    Raises:
        ConfigError: if a cluster cannot be reached, or no node can hold a trial.
        Unfinished: if Ray dies repeatedly, or a Ray that was not started here dies, or its files have no room.
    """
    from sweeps.running.tuning import tune_search

    lost, finished, ours = 0, 0, True
    try:
        run.begin()
        while not run.over:
            try:
                with (
                    connected(resources, *(() if ahead is None else (ahead.taken(), ahead.keep))) as ours,
                    watched(functools.partial(silent, address()), run.last_words),
                ):
                    tune_search(run, resources)
            except EngineLost as error:
                done = sum(len(results) for results in run.search.results.values())
                lost, finished = (lost + 1 if done == finished else 1), done
                if not ours or resources.address is not None or lost > MAX_ENGINES:
                    raise Unfinished(f"Ray has died ({error})") from error
                run.note("Ray has died; it is started again, and trials resume from their checkpoints")
                run.all_lost()
    finally:
        run.end()
