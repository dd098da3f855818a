"""The turn of a sweep: trials go out to workers on Ray, results come back, whatever dies is replaced."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from cbs.config import TrialConfig
from cbs.errors import ResultsError, Unfinished
from cbs.record import TrialStatus, without_curve
from cbs.store import Store
from sweeps.cell import Cell
from sweeps.cluster import Resources, check_placement, connected, rooms
from sweeps.lock import Lock
from sweeps.progress import Progress
from sweeps.search import Search
from sweeps.worker import Setup, Worker

MAX_DEATHS = 2
"""How often a trial whose process died is started again before it counts as FAILED."""
MAX_LOSSES = 10
"""How often a trial is started again whose node or worker went away, which is hardly its own fault."""
MAX_ENGINES = 3
"""How often Ray is started again in a row without a trial coming back in between."""
TURN = 0.25
"""Seconds to wait for a result before looking around."""


class EngineLost(Exception):
    """Ray itself is gone."""


@dataclass
class Run:
    """A sweep under way.

    Attributes:
        silence: seconds without a sign of life after which a trial is stopped.
        fatal: why the sweep has to end, or ``None``.
        out: the trials that workers have, by trial id.
        deaths: how often the process of a trial has died, by trial id.
        losses: how often its worker was lost with its node.
    """

    search: Search
    store: Store
    progress: Progress
    lock: Lock
    silence: float
    fatal: str | None = None
    out: dict[str, TrialConfig] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        return self.fatal is not None or self.search.done


def run_search(run: Run, resources: Resources) -> None:
    """Run the search to its end, on one Ray after the other if need be; returns early on a fatal problem.

    Raises:
        ConfigError: if Ray cannot be reached or started, or no node can hold a trial.
        Unfinished: if Ray dies again and again, or one that was not started here.
    """
    lost, finished = 0, 0
    while not run.over:
        try:
            with connected(resources) as ours:
                Turn(run, resources).serve()
        except EngineLost as error:
            done = sum(len(found) for found in run.search.results.values())
            lost, finished = (lost + 1 if done == finished else 1), done
            if not ours or lost > MAX_ENGINES:
                raise Unfinished(f"Ray has died ({error})") from error
            run.progress.note("Ray has died; it is started again, and trials go on from their checkpoints")
            for config in run.out.values():
                run.search.give_back(config)
            run.out.clear()


class Turn:
    """One connection to Ray."""

    def __init__(self, run: Run, resources: Resources) -> None:
        self._run, self._resources = run, resources
        self._gpus = resources.gpus_of_trial(run.search.sweep.device)
        check_placement(resources, self._gpus)
        setup = Setup(
            store=str(run.store.root.resolve()),
            path=str(Path.cwd()),
            threads=resources.cpus_per_trial,
            prune_factor=run.search.sweep.prune_factor,
            silence=run.silence,
        )
        options = {"num_cpus": resources.cpus_per_trial, "num_gpus": self._gpus, "max_concurrency": 4}
        remote: Any = ray.remote(Worker)
        self._new_worker = lambda: remote.options(**options).remote(setup)
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, TrialConfig]] = {}

    def serve(self) -> None:
        """Hand out trials and take in results until the sweep is over."""
        run = self._run
        while not run.over:
            with lost_engine():
                self._hand_out()
                done, _ = ray.wait(list(self._busy), timeout=TURN)
                for answer in done:
                    worker, config = self._busy.pop(answer)
                    self._take_in(answer, worker, config)
                if run.progress.due() or run.lock.due:
                    self._tell()

    def _hand_out(self) -> None:
        search = self._run.search
        room = rooms(self._resources, self._gpus)
        while len(self._busy) < room and (config := search.next()) is not None:
            worker = self._idle.pop() if self._idle else self._new_worker()
            best = search.best_steps(Cell.of(config))
            self._run.out[config.trial_id] = config
            self._busy[worker.run.remote(config.to_dict(), best)] = worker, config

    def _take_in(self, answer: Any, worker: Any, config: TrialConfig) -> None:
        run = self._run
        try:
            found = ray.get(answer)
        except RayError as error:
            check_home(error)
            del run.out[config.trial_id]
            run.search.give_back(config)
            run.losses[config.trial_id] += 1
            if run.losses[config.trial_id] > MAX_LOSSES:
                run.fatal = f"trial {config.trial_id}: its worker was lost {MAX_LOSSES} times: {first_line(error)}"
            return
        del run.out[config.trial_id]
        self._idle.append(worker)
        for note in found.get("notes", ()):
            run.progress.note(note)
        if "fatal" in found:
            run.fatal = found["fatal"]
            return
        try:
            if "died" in found:
                run.deaths[config.trial_id] += 1
                if run.deaths[config.trial_id] <= MAX_DEATHS and not found["hung"]:
                    run.search.give_back(config)
                    return
                status = TrialStatus.OUT_OF_MEMORY if found["memory"] else TrialStatus.FAILED
                run.store.save(without_curve(config, status, found["died"]))
                run.store.write_last_lines(config.trial_id, found["lines"])
            elif not run.store.contains(config):
                run.fatal = f"trial {config.trial_id} was written, but not to {run.store.root}: all nodes must share it"
                return
            finished = run.store.load(config.trial_id, with_steps=False)
        except ResultsError as problem:
            run.fatal = str(problem)
            return
        self._tighten(Cell.of(config), finished.steps_to_target)
        run.search.add(finished)
        run.progress.finished(finished, run.search)

    def _tighten(self, cell: Cell, steps: float | None) -> None:
        """Tell the running trials of a cell that its best has become better."""
        best = self._run.search.best_steps(cell)
        if steps is not None and (best is None or steps < best):
            for worker, config in self._busy.values():
                if Cell.of(config) == cell:
                    worker.tighten.remote(config.trial_id, steps)

    def _tell(self) -> None:
        """Show where the running trials are, here and in the lock."""
        run = self._run
        asked = {worker.where.remote(): config.trial_id for worker, config in self._busy.values()}
        there, _ = ray.wait(list(asked), num_returns=len(asked), timeout=1.0) if asked else ([], [])
        for _ in range(len(asked) - len(there)):
            if self._idle:  # a worker that is not placed yet may wait for the room of one that has nothing to do
                ray.kill(self._idle.pop())
        running = {}
        for answer in there:
            with contextlib.suppress(RayError):  # its worker has died, which its trial will tell
                running[asked[answer]] = ray.get(answer)
        if run.progress.due():
            measured = {key: place for key, place in running.items() if place.get("value") is not None}
            run.progress.update(run.search, measured)
        if run.lock.due:
            counts = [run.search.counts(study) for study in run.search.sweep.studies()]
            try:
                run.lock.beat(
                    {"done": sum(c[0] for c in counts), "planned": sum(c[1] for c in counts), "running": running}
                )
            except ResultsError as problem:
                run.fatal = str(problem)


@contextlib.contextmanager
def lost_engine() -> Iterator[None]:
    """What Ray raises when it is gone, as :class:`EngineLost`."""
    try:
        yield
    except RayError as error:
        check_home(error)
        raise EngineLost(first_line(error)) from error
    except ConnectionError as error:
        raise EngineLost(first_line(error)) from error


def check_home(error: Exception) -> None:
    """Check that the node this process is connected to is alive.

    Raises:
        EngineLost: if it is not.
    """
    try:
        home = ray.get_runtime_context().get_node_id()
        alive = any(node["Alive"] for node in ray.nodes() if node["NodeID"] == home)
    except Exception as unreachable:  # noqa: BLE001 - Ray raises half a dozen kinds when it is gone
        raise EngineLost(first_line(unreachable)) from error
    if not alive:
        raise EngineLost(first_line(error)) from error


def first_line(error: BaseException) -> str:
    """What an exception of Ray says first, else its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
