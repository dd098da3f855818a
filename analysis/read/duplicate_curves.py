"""Detect trials that should differ but have the same curve: their differing settings had no effect on training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

FEWEST = 3
"""Number of values after step 0, all different, that two curves do not share by chance."""

LoggedPoints = tuple[tuple[int, float], ...]
"""Pairs of step and value."""

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
    both go.

    Args:
            trials: table with columns ``sweep``, ``group``, ``tuned``, ``choice``, ``lr``, ``batch_size``, ``seed``,
                and the evaluation curve in ``steps`` and ``values``.
            notes: list to which lines are added.

        Returns:
            The same rows and columns; of several copies of one run, the longest.
    """
    curves = [_curve(*pair) for pair in zip(trials["steps"], trials["values"], strict=True)]
    candidates = trials.assign(
        curve=curves, beginning=[curve[:FEWEST] for curve in curves], called=trials["choice"].map(str)
    )
    candidates = candidates[candidates["curve"].map(len) > 0]
    copies: list[Any] = []
    for name, (words, meaning) in _MEANT.items():
        others = ["group", "beginning", *(other for other in _MEANT if other != name)]
        twins = candidates[candidates.duplicated(others, keep=False)]
        parts = [part for _, part in twins.groupby(others, dropna=False)["curve"]]
        same = dict(same_trials for part in parts for same_trials in _same(part))
        if name == "seed":
            copies = [row for row, behind in same.items() if behind]
        notes += [
            f"sweep {sweep}, {optimizer}: {len(part)} trials that differ in the {words} alone have the same curve, so "
            f"what trained them did not use it: {meaning}"
            for (sweep, optimizer), part in candidates.loc[sorted(same)].groupby(["sweep", "called"], sort=False)
        ]
    return trials.drop(index=copies).reset_index(drop=True)


def shared_runs(trials: pd.DataFrame) -> Iterator[str]:
    """A line for every two sweeps with trials of one configuration and one curve, bit by bit: a copy, or a sweep beside
    what it was merged into, is no second measurement.

    Args:
        trials: columns as of :func:`without_copies`, and ``trial_id``.
    """
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
            f"{count} trials of sweep {called[other]} are those of sweep {called[one]}, bit by bit: what both "
            "say was measured once; leave one of them out"
        )


def _curve(steps: Sequence[Any], values: Sequence[Any]) -> LoggedPoints:
    """Return the points after step 0; none if the first values are too few or too similar to identify a run."""
    points = tuple((int(step), float(value)) for step, value in zip(steps, values, strict=True) if step > 0)
    return points if len({value for _, value in points[:FEWEST]}) == FEWEST else ()


def _same(curves: pd.Series) -> Iterator[tuple[Any, bool]]:
    """Yield the labels of curves that continue like another one, and whether that one is longer, or equally long and
    earlier."""
    for place, (row, curve) in enumerate(curves.items()):
        like = [(at, len(other)) for at, other in enumerate(curves) if other[: len(curve)] == curve[: len(other)]]
        if len(like) > 1:
            yield row, any(length > len(curve) or (length == len(curve) and at < place) for at, length in like)
