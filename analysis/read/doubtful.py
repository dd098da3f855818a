"""Doubtful trials, which results name: such that should differ but have the same curve, as their differing settings had
no effect on training; and such whose external program ended earlier than in comparable trials, by an early stop or an
unreported failure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from cbs.trial.config import COMMAND
from cbs.trial.record import TrialStatus

FEWEST = 3  # Number of values after step 0, all different, that two curves do not share by chance

# Least share of seeds with the result of another one, to five digits and more, that is not chance
LEAST = 0.05

LoggedPoints = tuple[tuple[int, float], ...]  # Pairs of step and value

_MEANT = {
    "seed": ("seed", "identical runs count once"),
    "lr": ("learning rate", "none of them is better than another"),
    "batch_size": ("batch size", "the steps do not depend on it"),
    "tuned": ("options of --axis", "none of their values is better than another"),
}


def without_copies(trials: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return the trials without copies, which differ from another trial only in the seed and have the same curve.

    ``notes`` gets a line for each of seed, learning rate, batch size and tuned options that made no difference, by
    sweep and optimizer. Two curves are the same if their steps and values after step 0 are equal, bit by bit, as far as
    both go; the longest of several copies is kept. Trials that have a result and hardly a curve are copies if at least
    three of a sweep and optimizer have the results of other seeds, to all of five digits or more.

    ``trials`` has the columns ``sweep``, ``group``, ``tuned``, ``choice``, ``lr``, ``batch_size``, ``seed``, and the
    evaluation curve in ``steps`` and ``values``.
    """
    curves = {
        row: curve
        for row, *pair in zip(trials.index, trials["steps"], trials["values"], strict=True)
        if (curve := _curve(*pair))
    }
    # a setting that is unknown, NaN, is alike in all trials that lack it
    columns = [["unknown" if value != value else value for value in trials[name]] for name in ("group", *_MEANT)]
    keys = dict(zip(trials.index, zip(*columns, strict=True), strict=True))
    alike = {row: key for row, key in keys.items() if row in curves}
    owners = dict(zip(trials.index, zip(trials["sweep"], map(str, trials["choice"]), strict=True), strict=True))
    copies: list[Any] = []
    for index, (name, (words, meaning)) in enumerate(_MEANT.items(), start=1):
        twins: dict[Any, dict[Any, LoggedPoints]] = {}
        for row, key in alike.items():
            others = (*key[:index], *key[index + 1 :], curves[row][:FEWEST])
            twins.setdefault(others, {})[row] = curves[row]
        same = dict(same_trials for part in twins.values() if len(part) > 1 for same_trials in _same(part))
        if name == "seed":
            copies = [row for row, behind in same.items() if behind]
        counts = Counter(owners[row] for row in sorted(same))
        notes += [
            f"sweep {sweep}, {optimizer}: {count} trials that differ in the {words} alone have the same curve, so "
            f"the training program did not use it: {meaning}"
            for (sweep, optimizer), count in counts.items()
        ]
    ends: dict[Any, float] = {}
    short: dict[Any, dict[Any, Any]] = {}
    for row, steps, values in zip(trials.index, trials["steps"], trials["values"], strict=True):
        if row not in curves and (end := _end(values)) is not None:
            ends[row] = end
            short.setdefault(owners[row], {})[row] = (*keys[row][:1], *keys[row][2:], steps[-1])
    for owner, runs in short.items():
        copied, pairs = _copied_seeds(runs, ends)
        if len({ends[row] for row in copied}) >= FEWEST and len(copied) >= LEAST * pairs:
            copies += copied
            notes.append(
                "sweep {}, {}: {} trials have, to the last digit, the result of another seed, so they were copied, or "
                "the training program did not use the seed: identical runs count once".format(*owner, len(copied))
            )
    return trials.drop(index=copies).reset_index(drop=True)


def _end(values: Sequence[Any]) -> float | None:
    """Return the last value of a curve that is too short to identify a run; ``None`` if four digits state it."""
    last = float(np.asarray(values, dtype=float)[-1]) if len(values) else float("nan")
    return last if np.isfinite(last) and float(f"{last:.4g}") != last else None


def _copied_seeds(keys: Mapping[Any, Any], ends: Mapping[Any, float]) -> tuple[list[Any], int]:
    """Return the trials whose last value an earlier trial of the same key has, and the number of those that have one to
    compare with."""
    seen: dict[Any, set[float]] = {}
    copied, pairs = [], 0
    for row, key in keys.items():
        before = seen.setdefault(key, set())
        pairs += bool(before)
        copied += [row] * (ends[row] in before)
        before.add(ends[row])
    return copied, pairs


def shared_runs(trials: pd.DataFrame) -> Iterator[str]:
    """Yield a line for every two sweeps that share trials with the same configuration and, bit by bit, the same curve:
    a copy, or a sweep beside the one it was merged into, is no second measurement. Columns are those of
    :func:`without_copies`, and ``root`` and ``trial_id``."""
    twins = trials[trials.duplicated("trial_id", keep=False)]
    runs: dict[Any, dict[str, None]] = {}
    columns = (twins[key] for key in ("root", "trial_id", "steps", "values"))
    for root, name, steps, values in zip(*columns, strict=True):
        if curve := _curve(steps, values):
            runs.setdefault((name, curve), {})[root] = None
    names = dict(zip(twins["root"], twins["sweep"], strict=True))
    called = {root: name if list(names.values()).count(name) == 1 else root for root, name in names.items()}
    counts = Counter(pair for sweeps in runs.values() for pair in combinations(sweeps, 2))
    for (one, other), count in counts.items():
        yield (
            f"{count} trials of sweep {called[other]} are those of sweep {called[one]}, bit by bit: they were "
            "measured once, not twice; leave one of the sweeps out"
        )


def _curve(steps: Sequence[Any], values: Sequence[Any]) -> LoggedPoints:
    """Return the points after step 0; none if the first values are too few or too similar to identify a run."""
    pairs = zip(np.asarray(steps).tolist(), np.asarray(values, dtype=float).tolist(), strict=True)
    points = tuple((int(step), value) for step, value in pairs if step > 0)
    return points if len({value for _, value in points[:FEWEST]}) == FEWEST else ()


def _same(curves: Mapping[Any, LoggedPoints]) -> Iterator[tuple[Any, bool]]:
    """Yield the labels of curves that continue like another one, and whether that one is longer, or equally long and
    earlier."""
    for index, (row, curve) in enumerate(curves.items()):
        like = [
            (at, len(other)) for at, other in enumerate(curves.values()) if other[: len(curve)] == curve[: len(other)]
        ]
        if len(like) > 1:
            yield row, any(length > len(curve) or (length == len(curve) and at < index) for at, length in like)


# Fraction of the steps of the longest trial of a batch size below which a trial ended early; the last evaluations may
# differ a little.
_SOONER = 0.9


def cut_short(trials: pd.DataFrame) -> Iterator[str]:
    """Yield a line for every sweep and optimizer with such trials.

    A program that decides itself when to end does so at the same step at every learning rate. If another trial trained
    longer, the budget of the shorter one was not spent. ``trials`` are those of :class:`analysis.read.results.Results`
    with their ``choice`` and ``config``.
    """
    longest = trials.groupby(["group", "batch_size"])["final_step"].transform("max")
    own = trials["config"].map(lambda config: config["workload"]["name"] == COMMAND)
    itself = (trials["status"] == TrialStatus.BUDGET_EXHAUSTED) & (trials["final_step"] < trials["max_steps"])
    short = trials.assign(longest=longest, called=trials["choice"].map(str))
    short = short[own & itself & (trials["final_step"] < _SOONER * longest)]
    for (sweep, optimizer), part in short.groupby(["sweep", "called"], sort=False):
        worst = part.loc[(part["final_step"] / part["longest"]).idxmin()]
        yield (
            f"sweep {sweep}, {optimizer}: in {len(part)} trials the program ended earlier than in others of "
            f"their batch size (at step {worst['final_step']} of {worst['longest']} at batch size {worst['batch_size']}"
            f" and learning rate {worst['lr']:.3g}): if it stopped early, or failed with exit code 0, these learning "
            "rates were not tried to their end"
        )
