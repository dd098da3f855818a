"""Rounds: add trials to a sweep until its answer is good enough.

Once every search is done, the folder is analysed. Each optimizer whose answer is not good enough gets further trials,
as a sweep into the same folder, and then the folder is analysed again. Each round is written to :data:`ROUNDS` before
its trials run, together with the trials on which the decision was based. When the same command is given again it first
replays the rounds written there, each search with only the trials it had at the time, so that an interrupted sweep
continues with the same trials.
"""

import itertools
import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError, ResultsError, reason
from cbs.files import atomic_file
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.launching.policies import Policy, SweepReport, Underway, outcome, parts
from sweeps.outlook.cost import Cost
from sweeps.outlook.report import write_reasons
from sweeps.search.search import Limits, Search
from sweeps.spec.axes import StagedStudy, StudyKey
from sweeps.spec.spec import Sweep

ROUNDS = "rounds.json"
"""File in the folder of a sweep. For every command that went on in rounds it holds what was asked for, what each round
added, and the trials that had finished since the previous round."""

MOST_ROUNDS = 40  # Largest number of rounds, whatever the answer is
FIRST = 32  # Batch size near which a sweep begins if the recipe expects none
APART = 4  # Ratio of the first two batch sizes


@dataclass(frozen=True, kw_only=True)
class WantedTrials:
    """Trials to add for an optimizer: every batch size with every seed.

    Attributes:
        lrs: learning rates; ``None`` to search them.
        within: difference of the metric to which that search goes (:attr:`sweeps.spec.spec.Sweep.within`); ``None`` for
            the sweep's own.
        bracket: whether best learning rates are to lie between worse ones, whatever other batch sizes say of them.
        why: reason in words.
    """

    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    lrs: tuple[float, ...] | None = None
    within: float | None = None
    bracket: bool = False
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


@dataclass
class Judgement:
    """Result of analysing the folder after a round.

    Attributes:
        estimates: plain JSON values about every optimizer.
        wishes: trials to add for each optimizer, by the text of its choice.
        reasons: why an optimizer whose answer is not good enough gets no trials, by its label.
    """

    estimates: list[dict[str, Any]] = field(default_factory=list)
    wishes: dict[str, list[WantedTrials]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


class Rounds(Policy):
    """Base class of the policies that add trials until the answer is good enough.

    Args:
        goal: requested half-width of the interval of ln of a batch size, see :func:`half_width`; ``None`` if none is
            requested.

    Attributes:
        searches: what ran last: one search for every part of the sweep, with all that was added.
        rounds: one entry per analysis, as plain JSON values.
        reasons: why the sweep ended although the answer is not good enough, by optimizer.
        workers: number of trials that run at once.
    """

    def __init__(self, goal: float | None) -> None:
        self.goal = goal
        self.searches: list[Search] = []
        self.rounds: list[dict[str, Any]] = []
        self.reasons: dict[str, str] = {}
        self.workers = 1
        self._stages: list[list[dict[str, Any]]] = []
        self._left: list[Sweep] = []
        self._written: _Written | None = None

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        if self.goal is not None and not 0.0 < self.goal <= 1.0:
            raise ConfigError(
                f"--precision must be above 0 and at most 1, got {self.goal:g}; 0.15 is about 15 % to either side"
            )
        super().check(sweep, limits=limits, source=source)

    @abstractmethod
    def judge(self, sweep: Sweep, folder: Path, stop: str | None) -> Judgement:
        """Analyse the results; called whenever every search is done.

        Args:
            sweep: the requested sweep.
            folder: its folder.
            stop: why no optimizer may get further trials; ``None`` as long as there is no reason.

        Raises:
            ResultsError: if the results cannot be read.
        """

    @abstractmethod
    def told(self, estimate: dict[str, Any]) -> str:
        """Return an entry of :attr:`Judgement.estimates` as a line to print."""

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        return super().preview(_grown(sweep, [self.first(sweep)]), folder, cost, workers, gpu_hour)

    def not_counted(self, report: SweepReport, limits: Limits) -> Iterator[str]:
        yield "what is added to these trials depends on how they end, and is not counted among them"
        yield from super().not_counted(report, limits)

    def to_json(self) -> dict[str, Any]:
        """Return how it ended, as plain JSON values."""
        ended = {"asked": self.goal, "reached": not self.reasons, "reasons": self.reasons}
        return {"precision": ended, "rounds": self.rounds}

    def asked(self) -> dict[str, Any]:
        """Return what tells this policy from others in the same folder, as plain JSON values."""
        return {"precision": self.goal}

    def first(self, sweep: Sweep) -> list[dict[str, Any]]:
        """Return what the sweep begins with, as entries of a round: by default all of it."""
        return [part_of(sweep, sweep.choices, sweep.axes.batch_sizes, sweep.axes.seeds, sweep.axes.lrs)]

    def next(self, underway: Underway) -> tuple[Sweep, Path] | None:
        """Return the next part of the requested sweep with all that was added so far; see the base class.

        Raises:
            ResultsError: if earlier rounds cannot be read, or new ones cannot be written.
        """
        if self._written is None:
            self._written = _Written(underway.folder, self.asked() | {"axes": underway.sweep.axes.to_json()})
            # a command may begin after the first trials have ended and before what they show is decided
            self.workers = underway.workers or self.workers
            self._begin(self.first(underway.sweep), underway)
        elif self._decided() is None:
            self.searches.append(underway.searches[-1])
            self.workers = self.searches[-1].workers or self.workers
        while not self._left:
            entry = self._decided()
            if entry is not None:
                self.rounds.append({key: value for key, value in entry.items() if key != "trials"})
                self.workers = entry["workers"]
            elif (entry := self._look(underway)) is None or not entry["added"]:
                return None
            self._begin(entry["added"], underway)
        return self._left.pop(0), underway.folder

    def report(self, underway: Underway) -> SweepReport:
        report = outcome(underway, self.searches, **self.to_json())
        write_reasons(report.content["trials"], underway.folder)
        return report

    def _decided(self) -> dict[str, Any] | None:
        """Return the round that follows the present trials if an earlier command has decided it."""
        assert self._written is not None
        return next(iter(self._written.rounds[len(self.rounds) :]), None)

    def _begin(self, added: list[dict[str, Any]], underway: Underway) -> None:
        """Note what is left to run once these entries are added: all parts of the sweep, so that each can be searched
        again; of those that an earlier command has run, the ones whose trials have been removed since."""
        self._stages.append(added)
        self._left, self.searches = parts(_grown(underway.sweep, self._stages)), []
        if self._written is not None and self._decided() is not None:
            there = _stored(underway.folder, self._written.trials(len(self._stages)))
            replayed = [Search(part, there) for part in self._left]
            for search in replayed:
                underway.limits.add(search.trials() if search.done else ())
            self._left = [search.sweep for search in replayed if not search.done]

    def _look(self, underway: Underway) -> dict[str, Any] | None:
        """Analyse the folder, and return and write the next round with what it adds; ``None`` if the results cannot be
        read."""
        assert self._written is not None
        sweep, limits = underway.sweep, underway.limits
        stop = _stopped(self.searches, limits)
        try:
            if stop is None and len(self.rounds) >= MOST_ROUNDS:
                stop = f"{MOST_ROUNDS} rounds are over"
            judged = self.judge(sweep, underway.folder, stop)
        except ResultsError as error:
            self.reasons = dict.fromkeys(sweep.axes.labels.values(), str(error))
            return None
        self.reasons = judged.reasons
        entry = {
            "round": len(self.rounds) + 1,
            "estimates": judged.estimates,
            "examples": limits.spent,
            "workers": self.workers,
            "added": self._added(sweep, judged),
        }
        self.rounds.append(entry)
        underway.note(self.line(entry))
        if entry["added"]:
            self._written.add(entry, Store(underway.folder).trial_ids())
        return entry

    def line(self, entry: dict[str, Any]) -> str:
        """Return one round as a line to print."""
        parts = [self.told(one) for one in entry["estimates"]]
        asked = "" if self.goal is None else f", half-width to reach {self.goal:g}"
        parts.append(f"{entry['examples']:,} examples so far{asked}")
        parts += dict.fromkeys(
            f"{' and '.join(part['labels'])} {'get' if part['labels'][1:] else 'gets'} {part['why']}"
            for part in entry["added"]
        )
        if not entry["added"]:
            parts += [f"{label} ends here: {why}" for label, why in self.reasons.items()] or ["reached"]
        return f"round {entry['round']}: {'; '.join(parts)}"

    def _added(self, sweep: Sweep, judged: Judgement) -> list[dict[str, Any]]:
        """Return the trials to add: equal wishes of several optimizers are joined, and earlier ones are not
        repeated."""
        earlier = {_key(text, part) for entry in self.rounds for part in entry["added"] for text in part["optimizers"]}
        added: dict[str, dict[str, Any]] = {}
        for text, wish in ((text, wish) for text, wishes in judged.wishes.items() for wish in wishes):
            label = sweep.axes.labels[text]
            part = {"optimizers": [text], "labels": [label], **wish.to_json()}
            if _key(text, part) in earlier:
                self.reasons[label] = "the trials that would help were added before and did not run"
                continue
            whole = added.setdefault(_key("", part), part)
            if whole is not part:
                whole["optimizers"].append(text)
                whole["labels"].append(label)
                whole["why"] = whole["why"] if part["why"] in whole["why"] else f"{whole['why']}; {part['why']}"
        return list(added.values())


def half_width(interval: tuple[float | None, float | None]) -> float:
    """Return half the width of the interval of ``ln B_crit``, ``ln(high / low) / 2``.

    If it is small, it is the half-width relative to the value. Infinite if an end is open.
    """
    low, high = interval
    return math.log(high / low) / 2 if low and high and math.isfinite(high) else math.inf


def _stored(folder: Path, trials: set[str]) -> list[TrialResult]:
    try:
        return [r for r in Store(folder).results() if r.status.final and r.trial_id in trials]
    except ResultsError:
        # a result is damaged: the sweep that runs next reports it and runs the trial again
        return []


def _stopped(searches: list[Search], limits: Limits) -> str | None:
    """Return why no further round may begin, or ``None``."""
    if limits.reached or not all(search.done for search in searches):
        return limits.reached or "not all trials have run"
    failed = sum(trial.status is TrialStatus.FAILED for search in searches for trial in search.trials())
    return f"{failed} trials failed" if failed else None


def _key(text: str, entry: dict[str, Any]) -> str:
    return json.dumps([text, entry["batch_sizes"], entry["seeds"], entry["lrs"], entry["within"], entry["bracket"]])


def first_sizes(sweep: Sweep, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return what a sweep begins with that finds its batch sizes: the critical one that its recipe expects and a
    smaller one; or where nothing is expected a single one, at which the noise scale is measured."""
    if sweep.expected is None and sweep.trial.probe is not None and not sweep.budgets:
        return [part_of(sweep, sweep.choices, (FIRST // 2,), seeds, sweep.axes.lrs)]
    near = FIRST if sweep.expected is None else sweep.expected[1] / sweep.expected[0]
    larger = 2 ** max(2, round(math.log2(near)))
    return [part_of(sweep, sweep.choices, (larger // APART, larger), seeds, sweep.axes.lrs)]


def part_of(
    sweep: Sweep,
    optimizers: Iterable[str],
    batch_sizes: Sequence[int],
    seeds: Sequence[int],
    lrs: Sequence[float] | None,
) -> dict[str, Any]:
    """Return an entry of a round as plain JSON values: every combination of these optimizers, batch sizes, seeds."""
    texts, rates = list(optimizers), None if lrs is None else tuple(lrs)
    wanted = WantedTrials(batch_sizes=tuple(batch_sizes), seeds=tuple(seeds), lrs=rates, why="")
    return {"optimizers": texts, "labels": [sweep.axes.labels[text] for text in texts], **wanted.to_json()}


def _grown(sweep: Sweep, stages: Sequence[Sequence[dict[str, Any]]]) -> Sweep:
    """Return the sweep with all that was added so far, in stages."""
    plans: dict[StudyKey, StagedStudy] = {}
    within = sweep.search.within
    for number, stage in enumerate(stages):
        for entry in stage:
            for study in itertools.starmap(StudyKey, itertools.product(entry["optimizers"], entry["batch_sizes"])):
                held = plans.get(study, StagedStudy(study, number, ()))
                lrs = sorted({*(held.lrs or ()), *entry["lrs"]}) if entry["lrs"] is not None else held.lrs
                plans[study] = replace(
                    held,
                    seeds=tuple(sorted({*held.seeds, *entry["seeds"]})),
                    lrs=None if lrs is None else tuple(lrs),
                    bracket=held.bracket or entry["bracket"],
                )
            if entry["within"] is not None:
                within = min(entry["within"], within or math.inf)
    return sweep.replace(
        batch_sizes=tuple(sorted({study.batch_size for study in plans})),
        seeds=tuple(sorted({seed for plan in plans.values() for seed in plan.seeds})),
        staged=tuple(plans.values()),
        within=within,
    )


class _Written:
    """The rounds of one command in the file :data:`ROUNDS`, which may hold those of other commands too.

    Args:
        folder: folder of the sweep.
        asked: settings that identify the command.

    Raises:
        ResultsError: if the file cannot be read.
    """

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self._path = folder / ROUNDS
        try:
            self._all = json.loads(self._path.read_text()) if self._path.exists() else []
            mine = [one for one in self._all if one["asked"] == asked]
            self.rounds: list[dict[str, Any]] = mine[0]["rounds"] if mine else []
            self.trials(len(self.rounds))
            if not all(part["optimizers"] and part["batch_sizes"] for one in self.rounds for part in one["added"]):
                raise ValueError("a round adds nothing")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ResultsError(f"cannot read {self._path}: {reason(error)}; remove it to decide again") from None
        if not mine:
            self._all.append({"asked": asked, "rounds": self.rounds})

    def trials(self, number: int) -> set[str]:
        """Return the trials that had finished when the given number of rounds had been decided."""
        return {trial for entry in self.rounds[:number] for trial in entry["trials"]}

    def add(self, entry: dict[str, Any], trials: list[str]) -> None:
        """Write a round to the file, with the trials that exist by now."""
        before = self.trials(len(self.rounds))
        self.rounds.append({**entry, "trials": [trial for trial in trials if trial not in before]})
        with atomic_file(self._path) as draft:
            draft.write_text(json.dumps(self._all, indent=2) + "\n")
