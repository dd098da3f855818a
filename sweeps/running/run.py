"""A running sweep: hands out trials, takes their outcomes, and notifies the observers; and sweeps that follow one
another."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cbs.errors import CbsError, ConfigError, ResultsError
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult, TrialStatus, without_curve
from cbs.trial.store import Store
from sweeps.outlook.nearness import check_measured, check_start
from sweeps.search.search import Observer, Search
from sweeps.spec.axes import Cell

Outcome = TypeVar("Outcome")

MAX_DEATHS = 2  # How often a trial whose process died is started again; a third death is hardly chance, so it is FAILED
MAX_LOSSES = 10  # How often a trial is started again after its node or worker was lost, which is hardly its own fault


@dataclass
class SweepRun:
    """A running sweep.

    Attributes:
        silence: seconds without a sign of life after which a trial is stopped.
        observers: objects that are notified of events, in this order.
        last_words: called when this process is about to be ended by force.
        fatal: why the sweep has to end, or ``None``.
        again: whether the same command can then continue the sweep.
        out: trials that workers are running, by trial id.
        deaths: how often the process of a trial has died, by trial id.
        losses: how often a trial was lost with its worker or node, by trial id.
        where: latest heartbeats of the running trials, by trial id.
        told: notes of trials that were shown, so that each is shown only once.
    """

    search: Search
    store: Store
    silence: float
    observers: Sequence[Observer] = ()
    last_words: Callable[[], None] = lambda: None
    fatal: str | None = None
    again: bool = True
    out: dict[str, TrialConfig] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    where: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return self.fatal is not None or self.search.done or any(one.reached for one in self.observers)

    def next(self) -> tuple[TrialConfig, float | None] | None:
        """Return the trial to start now and the fewest steps of its cell so far; ``None`` if there is none right
        now."""
        config = self.search.next({key: beat.get("step") or 0 for key, beat in self.where.items()})
        if config is None:
            return None
        self.out[config.trial_id] = config
        return config, self.search.best_steps(Cell.of(config))

    def heard(self, config: TrialConfig, beat: dict[str, Any]) -> None:
        """Take in a heartbeat."""
        self.where[config.trial_id] = beat

    def lost(self, config: TrialConfig) -> None:
        """Plan a trial again whose worker is gone, which is hardly its own fault."""
        self._back(config)
        self.search.give_back(config)
        self.losses[config.trial_id] += 1
        if self.losses[config.trial_id] > MAX_LOSSES:
            self.fatal = f"trial {config.trial_id}: its worker was lost {self.losses[config.trial_id]} times"

    def take_in(self, config: TrialConfig, answer: dict[str, Any]) -> None:
        """Process what :meth:`sweeps.running.worker.Worker.run` returned."""
        self._back(config)
        for note in answer.get("notes", ()):
            if note not in self.told:
                self.note(note)
            self.told.add(note)
        if "fatal" in answer:
            self.fatal = answer["fatal"]
            return
        try:
            if "died" in answer:
                self.deaths[config.trial_id] += 1
                # what hung is likely to hang again, and that takes minutes to notice
                if self.deaths[config.trial_id] <= MAX_DEATHS and not answer["hung"]:
                    self.search.give_back(config)
                    return
                status = TrialStatus.OUT_OF_MEMORY if answer["memory"] else TrialStatus.FAILED
                self.store.save(without_curve(config, status, answer["died"]))
                self.store.write_last_lines(config.trial_id, answer["lines"])
            elif "message" in answer:
                self.store.save(without_curve(config, TrialStatus(answer["status"]), answer["message"]))
            elif not self.store.contains(config):  # the worker has stored the result, in the folder as its node sees it
                self.fatal = (
                    f"trial {config.trial_id} was written, but not to {self.store.root}: all nodes must share it"
                )
                return
            finished = self.store.load(config.trial_id, with_steps=False)  # no search asks for columns of steps
            check_start(finished)
        except CbsError as problem:
            self.fatal, self.again = str(problem), isinstance(problem, ResultsError)
            return
        self.search.add(finished)
        self._tell(lambda observer: observer.finished(finished, self.search))
        if finished.status is not TrialStatus.FAILED:
            return
        try:
            check_measured(self.search.trials())
        except ConfigError as problem:
            self.fatal = str(problem)

    def note(self, line: str) -> None:
        """Show a message to the user."""
        self._tell(lambda observer: observer.note(line))

    def find(self, stored: Sequence[TrialResult]) -> None:
        """Notify the observers that the folder was read and holds these trials."""
        self._tell(lambda observer: observer.found(stored, self.search))

    def begin(self) -> None:
        """Notify the observers that trials are about to run."""
        self._tell(lambda observer: observer.began(self.search))

    def look_around(self) -> None:
        """Notify the observers several times a second while trials run."""
        self._tell(lambda observer: observer.looked(self.search, self.where))

    def end(self) -> None:
        """Notify the observers that no trial is running any more."""
        self._tell(lambda observer: observer.ended(self.search))

    def settle(self) -> None:
        """Once no trial is missing, store the status of trials that the pruning rule changes."""
        for cell in self.search.cells() if self.search.done and self.fatal is None else ():
            for changed in self.search.settled(cell):
                self.store.update_record(changed)
                self._settled(changed)

    def _settled(self, changed: TrialResult) -> None:
        self._tell(lambda observer: observer.settled(changed))

    def all_lost(self) -> None:
        """Plan all running trials again after Ray is gone."""
        for config in self.out.values():
            self.search.give_back(config)
        self.out.clear()
        self.where.clear()

    def _back(self, config: TrialConfig) -> None:
        del self.out[config.trial_id]
        self.where.pop(config.trial_id, None)

    def _tell(self, event: Callable[[Observer], None]) -> None:
        """Notify every observer, even if one of them ends the sweep."""
        for observer in self.observers:
            try:
                event(observer)
            except CbsError as problem:
                if self.fatal is None:
                    self.fatal, self.again = str(problem), isinstance(problem, ResultsError)


class Runs(Generic[Outcome]):
    """Sweeps that follow one another, of which one is running.

    Args:
        runs: yields a sweep with missing trials, and is resumed once these have run; it chooses the next sweep from the
            results so far.

    Attributes:
        run: the running sweep; ``None`` after the last one.
        outcome: what ``runs`` returned.
    """

    run: SweepRun | None
    outcome: Outcome

    def __init__(self, runs: Generator[SweepRun, None, Outcome]) -> None:
        self._runs = runs
        self.advance()

    def advance(self) -> None:
        """End the running sweep and turn to the next one."""
        try:
            self.run = next(self._runs)
        except StopIteration as end:
            self.run, self.outcome = None, end.value
        except BaseException:
            self.run = None
            raise

    def end(self, error: BaseException) -> None:
        """End the running sweep because of an error, which is raised again, possibly as another one."""
        self._runs.throw(error)
