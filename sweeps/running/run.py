"""A sweep under way: what was handed out, what comes back, and what then happens to it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cbs.errors import CbsError, ResultsError
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialStatus, without_curve
from cbs.trial.store import Store
from sweeps.folder.bounds import Bounds
from sweeps.folder.lock import Lock
from sweeps.outlook.nearness import check_start
from sweeps.outlook.progress import Progress
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.cell import Cell
from sweeps.trackers.tracking import Tracking

MAX_DEATHS = 2
"""How often a trial whose process died is started again before it counts as FAILED."""
MAX_LOSSES = 10
"""How often a trial is started again whose node or worker went away, which is hardly its own fault."""


@dataclass
class SweepRun:
    """A sweep under way.

    Attributes:
        silence: seconds without a sign of life after which a trial is stopped.
        tracking: gets every finished trial.
        limits: when no trial starts any more, and those under way end.
        fatal: why the sweep has to end, or ``None``.
        again: whether the same command may then go on.
        out: the trials that workers have, by trial id.
        deaths: how often the process of a trial has died, by trial id.
        losses: how often its worker was lost with its node.
        where: the last signs of life of the running trials, by trial id.
        told: notes of trials, each of which is told once.
        how_on: how to go on, for the last words.
    """

    search: Search
    store: Store
    progress: Progress
    lock: Lock
    silence: float
    tracking: Tracking
    limits: Limits = field(default_factory=Limits)
    fatal: str | None = None
    again: bool = True
    out: dict[str, TrialConfig] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    where: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    how_on: str = ""

    def __post_init__(self) -> None:
        self.bounds = Bounds(self.store)

    @property
    def over(self) -> bool:
        return self.fatal is not None or self.search.done or self.limits.reached is not None

    def next(self) -> tuple[TrialConfig, float | None] | None:
        """The trial to start now and the fewest steps of its cell so far; ``None`` for none at the moment."""
        config = self.search.next({key: place.get("step") or 0 for key, place in self.where.items()})
        if config is None:
            return None
        self.out[config.trial_id] = config
        return config, self.search.best_steps(Cell.of(config))

    def lost(self, config: TrialConfig) -> None:
        """A trial whose worker is gone, which is hardly its own fault, is planned again."""
        self._back(config)
        self.search.give_back(config)
        self.losses[config.trial_id] += 1
        if self.losses[config.trial_id] > MAX_LOSSES:
            self.fatal = f"trial {config.trial_id}: its worker was lost {MAX_LOSSES} times"

    def take_in(self, config: TrialConfig, answer: dict[str, Any]) -> None:
        """What :meth:`sweeps.running.worker.Worker.run` returned."""
        self._back(config)
        for note in answer.get("notes", ()):
            if note not in self.told:
                self.progress.note(note)
            self.told.add(note)
        if "fatal" in answer:
            self.fatal = answer["fatal"]
            return
        try:
            if "died" in answer:
                self.deaths[config.trial_id] += 1
                if self.deaths[config.trial_id] <= MAX_DEATHS and not answer["hung"]:
                    self.search.give_back(config)
                    return
                status = TrialStatus.OUT_OF_MEMORY if answer["memory"] else TrialStatus.FAILED
                self.store.save(without_curve(config, status, answer["died"]))
                self.store.write_last_lines(config.trial_id, answer["lines"])
            elif "message" in answer:
                self.store.save(without_curve(config, TrialStatus(answer["status"]), answer["message"]))
            elif not self.store.contains(config):
                self.fatal = (
                    f"trial {config.trial_id} was written, but not to {self.store.root}: all nodes must share it"
                )
                return
            finished = self.store.load(config.trial_id, with_steps=False)
            check_start(finished)
            self._tighten(Cell.of(config), finished.steps_to_target)
        except CbsError as problem:
            self.fatal, self.again = str(problem), isinstance(problem, ResultsError)
            return
        self.search.add(finished)
        self.progress.finished(finished, self.search)
        self.tracking.add([finished])
        self.limits.add([finished])

    def look_around(self) -> None:
        """Show where the running trials are, here and in the lock."""
        if self.progress.due():
            measured = {key: place for key, place in self.where.items() if place.get("value") is not None}
            self.progress.update(self.search, measured)
        if self.lock.due:
            self.beat()

    def beat(self) -> None:
        """Say in the lock how far the sweep is, which it cannot go on without."""
        counts = [self.search.counts(study) for study in self.search.sweep.studies()]
        done, planned = (sum(column) for column in zip(*counts, strict=True))
        try:
            self.lock.beat({"done": done, "planned": planned, "running": dict(self.where)})
        except ResultsError as problem:
            self.fatal = str(problem)

    def all_lost(self) -> None:
        """Ray is gone: what was out is planned again."""
        for config in self.out.values():
            self.search.give_back(config)
        self.out.clear()
        self.where.clear()

    def last_words(self) -> None:
        """Say that Ray is gone and this process with it, and let go of the folder."""
        print(f"cbs: Ray has died (its control service is gone); {self.how_on}", file=sys.stderr, flush=True)
        self.lock.release()

    def _back(self, config: TrialConfig) -> None:
        del self.out[config.trial_id]
        self.where.pop(config.trial_id, None)
        self.bounds.forget(config.trial_id)

    def _tighten(self, cell: Cell, steps: float | None) -> None:
        """Tell the running trials of a cell that its best has become better."""
        best = self.search.best_steps(cell)
        running = [trial_id for trial_id, config in self.out.items() if Cell.of(config) == cell]
        if running and steps is not None and (best is None or steps < best):
            self.bounds.tell(dict.fromkeys(running, steps))
