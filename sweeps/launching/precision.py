"""``cbs sweep --precision`` and ``--auto``: a sweep that goes on until the critical batch size is known well enough, or
until both sides of the curve are seen.

Once every search is at its end the folder is analysed as ``cbs analyze`` does. Each optimizer whose interval is wider
than asked for gets the trials that ``cbs analyze --suggest`` proposes, with ``--auto`` alone the batch sizes among them
that lie beyond those there are, as a sweep into the same folder; then it is looked at again. A round is written down
(:data:`ROUNDS`) before its trials run, with the trials it was decided on. The same command goes through those that are
written down first, each search on no more than it had then, so a killed sweep goes on to the same trials.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbs.errors import ConfigError, ResultsError, reason
from cbs.files import whole_file
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.axes import pooled
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.result import Answer
    from analysis.estimate.suggest import Suggestion

ROUNDS = "rounds.json"
"""File in the folder of a sweep: for every command with ``--precision`` or ``--auto`` its axes, what each round added,
and the trials that had finished since the one before."""

MOST_ROUNDS = 20
"""Rounds after which a sweep ends however wide the interval is; each is expected to make it a fifth narrower."""

FEWEST_STEPS = 10.0
"""Steps to target at the largest batch size below which ``--auto`` adds no larger one: warmup and evaluations are as
long."""


@dataclass
class Rounds:
    """What came of it.

    Attributes:
        goal: half-width asked for, see :func:`half_width`; ``None`` where both sides of the curve are.
        searches: every one in the order they ran, the one that was asked for first; optimizers and batch sizes recur.
        rounds: one per look at the results, as plain JSON values.
        reasons: why it ended where the precision was not reached, by optimizer.
    """

    goal: float | None
    searches: list[Search] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        told = {"reached": not self.reasons, "reasons": self.reasons}
        if self.goal is None:
            return {"auto": told, "rounds": self.rounds}
        return {"precision": {"asked": self.goal} | told, "rounds": self.rounds}


def check_goal(sweep: Sweep, goal: float | None) -> None:
    """Check what was asked for.

    Raises:
        ConfigError: if it is no half-width, or batch sizes of the sweep change while it trains.
    """
    if goal is not None and not 0.0 < goal <= 1.0:
        raise ConfigError(f"--precision must be above 0 and at most 1, got {goal:g}; 0.15 is about 15 % to either side")
    if "batch_schedules" in sweep.axes():
        raise ConfigError(
            f"{_flag(goal)} is about the critical batch size, which needs constant ones: leave out --schedule"
        )


def _flag(goal: float | None) -> str:
    return "--auto" if goal is None else "--precision"


def half_width(interval: tuple[float | None, float | None]) -> float:
    """Of the interval of ``ln B_crit``, ``ln(high / low) / 2``: for small ones the half-width relative to the value;
    infinite where an end is open."""
    low, high = interval
    return math.log(high / low) / 2 if low and high and math.isfinite(high) else math.inf


def to_precision(
    sweep: Sweep,
    goal: float | None,
    folder: Path,
    train: Callable[[Sweep], Search],
    *,
    limits: Limits | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Rounds:
    """Run a sweep, and what narrows its intervals most per example, until each is as narrow as asked for.

    Args:
        sweep: its target resolved.
        goal: half-width of ``ln B_crit`` at which nothing is added any more; ``None`` for batch sizes at either end
            until both sides of the curve are seen, and no more.
        folder: of the sweep.
        train: runs what ``folder`` does not hold yet of a sweep; one that ends early ends everything.
        limits: no round begins after one is reached.
        say: takes one line per round.

    Raises:
        ConfigError: see :func:`check_goal`.
        ResultsError: if the rounds before cannot be read, or those to come written.
    """
    check_goal(sweep, goal)
    limits = limits or Limits()
    done, written = Rounds(goal), _Written(folder, {"precision": goal, "axes": sweep.axes()})
    parts, number = [sweep], 0
    for number, entry in enumerate(written.rounds, start=1):
        there = _stored(folder, written.trials(number))
        done.searches += [_again(part, there) or train(part) for part in parts]
        limits.add(trial for search in done.searches for trial in search.trials())
        done.rounds.append({key: value for key, value in entry.items() if key != "trials"})
        parts = [_part(sweep, part) for part in entry["added"]]
    while True:
        done.searches += map(train, parts)
        limits.add(trial for search in done.searches for trial in search.trials())
        stop = _stopped(done.searches, limits)
        try:
            found = look(sweep, folder)
        except ResultsError as error:
            done.reasons = dict.fromkeys(sweep.labels.values(), str(error))
            return done
        added = _decide(sweep, found, done, stop if stop or number < MOST_ROUNDS else f"{MOST_ROUNDS} rounds are over")
        entry = {
            "round": number + 1,
            "estimates": [_estimate(sweep, text, answer) for text, answer in found.items()],
            "examples": limits.spent,
            "added": added,
        }
        done.rounds.append(entry)
        say(told(entry, done))
        if not added:
            return done
        done.reasons = {}
        written.add(entry, Store(folder).trial_ids())
        parts, number = [_part(sweep, part) for part in added], number + 1


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

    found = {str(answer.group.choice): answer for answer in answers(load(folder), DEFAULT, noise=False)}
    groups = {text: str(pooled(sweep, choice)) for text, choice in sweep.choices.items()}
    return {text: found[group] for text, group in groups.items() if group in found}


def told(entry: dict[str, Any], done: Rounds) -> str:
    """One look at the results for a person."""
    parts = []
    for one in entry["estimates"]:
        low, high = (f"{end:.3g}" if end else "?" for end in one["interval"])
        value = f"{one['critical_batch_size']:.3g}" if one["critical_batch_size"] else "unknown"
        width = f", half-width {one['half_width']:.2f}" if one["half_width"] else ""
        parts.append(f"{one['optimizer']}: B_crit {value} [{low}, {high}]{width}")
    asked = "" if done.goal is None else f", half-width asked for {done.goal:g}"
    parts.append(f"{entry['examples']:,} examples so far{asked}")
    parts += [f"{', '.join(part['labels'])} gets {part['why']}" for part in entry["added"]]
    if not entry["added"]:
        parts += [f"{label} ends here: {why}" for label, why in done.reasons.items()] or ["reached"]
    return f"round {entry['round']}: {'; '.join(parts)}"


def _stopped(searches: list[Search], limits: Limits) -> str | None:
    """Why no further round may begin."""
    if limits.reached or not all(search.done for search in searches):
        return limits.reached or "not all trials have run"
    failed = sum(trial.status is TrialStatus.FAILED for search in searches for trial in search.trials())
    return f"{failed} trials failed" if failed else None


def _decide(sweep: Sweep, found: dict[str, Answer], done: Rounds, stop: str | None) -> list[dict[str, Any]]:
    """What to add, equal wishes of several optimizers together; ``done.reasons`` of those that get nothing and should.

    An interval that is narrow while the verdict asks for other trials is not believed: those run first.
    """
    from analysis.estimate.diagnosis import Verdict
    from analysis.estimate.suggest import suggest

    as_run = (Verdict.COARSE_STEPS, Verdict.NOISY_STEPS, Verdict.IN_WARMUP)
    curable = set(Verdict) - {Verdict.OK, *as_run, Verdict.OFF_THE_CURVE, Verdict.FAR_SEED, Verdict.TOO_WIDE}
    if done.goal is None:
        curable = {Verdict.NOT_REACHED, Verdict.TOO_FEW_BATCH_SIZES, Verdict.NO_PERFECT_SCALING, Verdict.NO_SATURATION}
    earlier = {_key(text, part) for entry in done.rounds for part in entry["added"] for text in part["optimizers"]}
    added: dict[str, dict[str, Any]] = {}
    done.reasons = {}
    for text, label in sweep.labels.items():
        answer = found.get(text)
        if answer is None:
            done.reasons[label] = "it has no trials that can be read"
            continue
        narrow, verdict = done.goal is None or half_width(answer.interval) <= done.goal, answer.verdict
        if narrow and verdict not in curable:
            if verdict is not Verdict.OK and done.goal is not None:
                done.reasons[label] = f"the interval is narrow enough, but: {verdict}"
            continue
        state = f"the interval is narrow enough, but: {verdict}" if narrow and done.goal else f"verdict: {verdict}"
        wish = None if stop else suggest(answer)
        if wish is not None and done.goal is None:
            wish = _beyond(wish, answer, sweep)
        if wish is None:
            done.reasons[label] = f"{stop or 'no further trial is known to help'} ({state})"
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
            done.reasons[label] = f"what would help was asked for before and did not run ({state})"
            continue
        whole = added.setdefault(_key("", part), part)
        if whole is not part:
            whole["optimizers"].append(text)
            whole["labels"].append(label)
            whole["why"] = whole["why"] if part["why"] in whole["why"] else f"{whole['why']}; {part['why']}"
    return list(added.values())


def _beyond(wish: Suggestion, answer: Answer, sweep: Sweep) -> Suggestion | None:
    """The batch sizes of it below and above those that are there, with the seeds and learning rates of the sweep;
    ``None`` where there are none, or no larger one can be told from the largest."""
    first, last = answer.points[0], answer.points[-1]
    fast = last.steps_to_target is not None and last.steps_to_target < FEWEST_STEPS
    sizes = tuple(size for size in wish.batch_sizes if size < first.batch_size or (size > last.batch_size and not fast))
    why = f"batch sizes {', '.join(map(str, sizes))}: {answer.verdict}"
    return replace(wish, batch_sizes=sizes, seeds=sweep.seeds, lrs=sweep.lrs, reasons=(why,)) if sizes else None


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
        with whole_file(self._path) as draft:
            draft.write_text(json.dumps(self._all, indent=2) + "\n")
