"""Rounds: a sweep that goes on, with what ``cbs analyze --suggest`` proposes, until its answer is good enough.

Once every search is at its end the folder is analysed as ``cbs analyze`` does. Each optimizer whose answer is not good
enough gets trials as a sweep into the same folder; then it is looked at again. A round is written down
(:data:`ROUNDS`) before its trials run, with the trials it was decided on. The same command goes through those that are
written down first, each search on no more than it had then, so a killed sweep goes on to the same trials.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cbs.errors import ConfigError, ResultsError, reason
from cbs.files import atomic_file
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.launching.policies.base import Policy, SweepReport, Sweeps
from sweeps.launching.policies.once import outcome
from sweeps.outlook.report import write_reasons
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.axes import pooled
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.diagnosis import Verdict
    from analysis.estimate.result import Answer
    from analysis.estimate.suggest import Suggestion

ROUNDS = "rounds.json"
"""File in the folder of a sweep: for every command with ``--precision`` or ``--auto`` its axes, what each round added,
and the trials that had finished since the one before."""

MOST_ROUNDS = 20
"""Rounds after which a sweep ends whatever its answer is; each is expected to make an interval a fifth narrower."""


class Rounds(Policy):
    """The common part of the policies that add trials until the answer is good enough.

    Args:
        goal: half-width of ``ln B_crit`` asked for, see :func:`half_width`; ``None`` where no width is asked for.

    Attributes:
        flag: what asks for the policy.
        searches: every one in the order they ran, the one that was asked for first; optimizers and batch sizes recur.
        rounds: one per look at the results, as plain JSON values.
        reasons: why it ended where the answer is not good enough, by optimizer.
    """

    flag: ClassVar[str]

    def __init__(self, goal: float | None) -> None:
        self.goal = goal
        self.searches: list[Search] = []
        self.rounds: list[dict[str, Any]] = []
        self.reasons: dict[str, str] = {}

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        if sweep.budgets:
            raise ConfigError(f"{self.flag} is about the critical batch size, which needs a target: leave out --budget")
        if "batch_schedules" in sweep.axes():
            raise ConfigError(
                f"{self.flag} is about the critical batch size, which needs constant ones: leave out --schedule"
            )

    @abstractmethod
    def curable(self) -> set[Verdict]:
        """Verdicts that ask for trials however narrow the interval is; asked once per look at the results."""

    def wanted(self, wish: Suggestion, answer: Answer, sweep: Sweep) -> Suggestion | None:
        """What of a proposal is added; ``None`` for nothing. Asked for every optimizer that is to get more."""
        return wish

    def not_counted(self, report: SweepReport, limits: Limits) -> Iterator[str]:
        goal = "" if self.goal is None else f" {self.goal:g}"
        yield f"what {self.flag}{goal} adds follows from how these trials end, and is not counted"
        yield from super().not_counted(report, limits)

    def to_json(self) -> dict[str, Any]:
        """How it ended, as plain JSON values."""
        ended = {"reached": not self.reasons, "reasons": self.reasons}
        how = {"auto": ended} if self.goal is None else {"precision": {"asked": self.goal} | ended}
        return how | {"rounds": self.rounds}

    def sweeps(self, sweep: Sweep, folder: Path, limits: Limits, note: Callable[[str], None]) -> Sweeps:
        """See the base class.

        Raises:
            ResultsError: if the rounds before cannot be read, or those to come written.
        """
        written = _Written(folder, {"precision": self.goal, "axes": sweep.axes()})
        parts, number = [sweep], 0
        for number, entry in enumerate(written.rounds, start=1):
            there = _stored(folder, written.trials(number))
            for part in parts:
                self._add(_again(part, there) or (yield part, folder), limits)
            self.rounds.append({key: value for key, value in entry.items() if key != "trials"})
            parts = [_part(sweep, part) for part in entry["added"]]
        while parts:
            for part in parts:
                self._add((yield part, folder), limits)
            now, number = self._look(sweep, folder, limits, number), number + 1
            if now is None:
                break
            note(self.line(now))
            if now["added"]:
                written.add(now, Store(folder).trial_ids())
            parts = [_part(sweep, part) for part in now["added"]]
        report = outcome(self.searches[0], folder, self.searches[1:], limits, **self.to_json())
        write_reasons(report.content["trials"], folder)
        return report

    def _add(self, search: Search, limits: Limits) -> None:
        self.searches.append(search)
        limits.add(search.trials())

    def _look(self, sweep: Sweep, folder: Path, limits: Limits, number: int) -> dict[str, Any] | None:
        """The round after so many, with what it adds; ``None`` where the results cannot be read."""
        stop = _stopped(self.searches, limits)
        try:
            answers = look(sweep, folder)
        except ResultsError as error:
            self.reasons = dict.fromkeys(sweep.labels.values(), str(error))
            return None
        added = self._decide(sweep, answers, stop if stop or number < MOST_ROUNDS else f"{MOST_ROUNDS} rounds are over")
        entry = {
            "round": number + 1,
            "estimates": [_estimate(sweep, text, answer) for text, answer in answers.items()],
            "examples": limits.spent,
            "added": added,
        }
        self.rounds.append(entry)
        return entry

    def line(self, entry: dict[str, Any]) -> str:
        """One look at the results for a person."""
        parts = []
        for one in entry["estimates"]:
            low, high = (f"{end:.3g}" if end else "?" for end in one["interval"])
            value = f"{one['critical_batch_size']:.3g}" if one["critical_batch_size"] else "unknown"
            width = f", half-width {one['half_width']:.2f}" if one["half_width"] else ""
            parts.append(f"{one['optimizer']}: B_crit {value} [{low}, {high}]{width}")
        asked = "" if self.goal is None else f", half-width asked for {self.goal:g}"
        parts.append(f"{entry['examples']:,} examples so far{asked}")
        parts += [f"{', '.join(part['labels'])} gets {part['why']}" for part in entry["added"]]
        if not entry["added"]:
            parts += [f"{label} ends here: {why}" for label, why in self.reasons.items()] or ["reached"]
        return f"round {entry['round']}: {'; '.join(parts)}"

    def _decide(self, sweep: Sweep, answers: dict[str, Answer], stop: str | None) -> list[dict[str, Any]]:
        """What to add, equal wishes of several optimizers together; :attr:`reasons` says who gets nothing."""
        from analysis.estimate.diagnosis import Verdict
        from analysis.estimate.suggest import suggest

        curable = self.curable()
        earlier = {_key(text, part) for entry in self.rounds for part in entry["added"] for text in part["optimizers"]}
        added: dict[str, dict[str, Any]] = {}
        self.reasons = {}
        for text, label in sweep.labels.items():
            answer = answers.get(text)
            if answer is None:
                self.reasons[label] = "it has no trials that can be read"
                continue
            narrow, verdict = self.goal is None or half_width(answer.interval) <= self.goal, answer.verdict
            if narrow and verdict not in curable:
                if verdict is not Verdict.OK and self.goal is not None:
                    self.reasons[label] = f"the interval is narrow enough, but: {verdict}"
                continue
            state = f"the interval is narrow enough, but: {verdict}" if narrow and self.goal else f"verdict: {verdict}"
            wish = None if stop else suggest(answer)
            if wish is not None:
                wish = self.wanted(wish, answer, sweep)
            if wish is None:
                self.reasons[label] = f"{stop or 'no further trial is known to help'} ({state})"
                continue
            part = {
                "optimizers": [text],
                "labels": [label],
                "batch_sizes": list(wish.batch_sizes),
                "seeds": list(wish.seeds),
                "lrs": None if wish.lrs is None else list(wish.lrs),
                "why": "; ".join(wish.reasons),
            }
            if _key(text, part) in earlier:
                self.reasons[label] = f"what would help was asked for before and did not run ({state})"
                continue
            whole = added.setdefault(_key("", part), part)
            if whole is not part:
                whole["optimizers"].append(text)
                whole["labels"].append(label)
                whole["why"] = whole["why"] if part["why"] in whole["why"] else f"{whole['why']}; {part['why']}"
        return list(added.values())


def half_width(interval: tuple[float | None, float | None]) -> float:
    """Of the interval of ``ln B_crit``, ``ln(high / low) / 2``: for small ones the half-width relative to the value;
    infinite where an end is open."""
    low, high = interval
    return math.log(high / low) / 2 if low and high and math.isfinite(high) else math.inf


def _stored(folder: Path, trials: set[str]) -> list[TrialResult]:
    try:
        return [r for r in Store(folder).results() if r.status.final and r.trial_id in trials]
    except ResultsError:
        # a damaged one: the sweep that then runs says which, and runs it again
        return []


def _again(part: Sweep, there: list[TrialResult]) -> Search | None:
    """A search that was at its end; ``None`` where trials have gone since."""
    search = Search(part, there)
    return search if search.done else None


def look(sweep: Sweep, folder: Path) -> dict[str, Answer]:
    """What ``cbs analyze`` says of the optimizers of the sweep; without its noise scales, which cost most.

    Raises:
        ResultsError: if there are no usable results.
    """
    from analysis.config import DEFAULT
    from analysis.estimate.estimates import answers
    from analysis.read.results import load

    answers_by_choice = {str(answer.group.choice): answer for answer in answers(load(folder), DEFAULT, noise=False)}
    groups = {text: str(pooled(sweep, choice)) for text, choice in sweep.choices.items()}
    return {text: answers_by_choice[group] for text, group in groups.items() if group in answers_by_choice}


def _stopped(searches: list[Search], limits: Limits) -> str | None:
    """Why no further round may begin."""
    if limits.reached or not all(search.done for search in searches):
        return limits.reached or "not all trials have run"
    failed = sum(trial.status is TrialStatus.FAILED for search in searches for trial in search.trials())
    return f"{failed} trials failed" if failed else None


def _key(text: str, part: dict[str, Any]) -> str:
    return json.dumps([text, part["batch_sizes"], part["seeds"], part["lrs"]])


def _part(sweep: Sweep, part: dict[str, Any]) -> Sweep:
    """A part of a round as a sweep of the same protocol."""
    return sweep.replace(
        optimizers=tuple(choice for text, choice in sweep.choices.items() if text in part["optimizers"]),
        batch_sizes=tuple(part["batch_sizes"]),
        seeds=tuple(part["seeds"]),
        lrs=None if part["lrs"] is None else tuple(part["lrs"]),
        search=sweep.search if part["lrs"] is None else "grid",
    )


def _estimate(sweep: Sweep, text: str, answer: Answer) -> dict[str, Any]:
    width = half_width(answer.interval)
    return {
        "optimizer": sweep.labels[text],
        "critical_batch_size": answer.critical_batch_size,
        "interval": list(answer.interval),
        "half_width": width if math.isfinite(width) else None,
        "verdict": str(answer.verdict),
    }


class _Written:
    """The rounds of one command in :data:`ROUNDS`, among those of others.

    Args:
        folder: of the sweep.
        asked: what tells the command from others.

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
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"cannot read {self._path}: {reason(error)}; remove it to decide anew") from None
        if not mine:
            self._all.append({"asked": asked, "rounds": self.rounds})

    def trials(self, number: int) -> set[str]:
        """Those that had finished when so many rounds were decided."""
        return {trial for entry in self.rounds[:number] for trial in entry["trials"]}

    def add(self, entry: dict[str, Any], trials: list[str]) -> None:
        """Write a round down, with all trials that there are."""
        before = self.trials(len(self.rounds))
        self.rounds.append({**entry, "trials": [trial for trial in trials if trial not in before]})
        with atomic_file(self._path) as draft:
            draft.write_text(json.dumps(self._all, indent=2) + "\n")
