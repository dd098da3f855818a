"""Progress of a running sweep: the best learning rates so far, the curve as it stands, and what is left.

The running sweep shows it on its screen and writes it to the lock of its folder, where ``cbs status`` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.search.search import Search

BAR = 16
"""Length of the longest bar in characters."""

HEADING = "log scale"
"""Column heading of the bars; see :func:`bars`."""


@dataclass(frozen=True)
class TimeLeft:
    """Expected remaining effort of a sweep.

    Attributes:
        trials: number of planned trials that have not ended, including the running ones.
        seconds: seconds until the last of them ends.
    """

    trials: int
    seconds: float


def time_left(search: Search, workers: int) -> TimeLeft | None:
    """Return what a sweep still takes at least, as a search plans further trials; ``None`` before any has ended.

    A trial takes as long as those at the nearest batch size took.

    Args:
        search: search of the sweep.
        workers: number of trials at a time; 0 if only the cluster knows it, then the number of running trials is used.
    """
    took: dict[int, list[float]] = {}
    for result in search.trials():
        seconds = result.timing.get("seconds")
        if isinstance(seconds, int | float) and 0 < seconds < math.inf:
            took.setdefault(result.config.batch_size, []).append(float(seconds))
    if not took:
        return None

    def expected(batch_sizes: Iterable[int]) -> float:
        near = [min(took, key=lambda known: abs(math.log(known / size))) for size in batch_sizes]
        return sum(sum(took[size]) / len(took[size]) for size in near)

    running = [cell.batch_size for cell, _ in search.running.values()]
    waiting = [config.batch_size for config in search.waiting()]
    # a running trial is on average half done
    seconds = expected(waiting) + expected(running) / 2
    trials = len(waiting) + len(running)
    return TimeLeft(trials, seconds / max(1, min(workers or len(running), trials)))


def standing_of(workers: int, search: Search, running: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the progress of a running sweep as plain JSON values: ``studies``, ``trials_left`` and ``seconds_left``;
    the last two are ``None`` until a trial has ended. ``workers`` is as for :func:`time_left`."""
    left = time_left(search, workers)
    return {
        "studies": rows_of(search),
        "trials_left": None if left is None else left.trials,
        "seconds_left": None if left is None else left.seconds,
    }


def rows_of(search: Search) -> list[dict[str, Any]]:
    """Return one row for every optimizer and batch size.

    A row has ``best_lr`` and its ``amount`` (mean steps to the target over the seeds so far, or the metric after a
    budget; ``of`` says which), and the numbers of ``done`` and ``planned`` trials.
    """
    rows = []
    for key, study in search.studies.items():
        best, (done, planned) = study.best, study.counts
        rows.append(
            {
                "optimizer": search.sweep.axes.labels[key.optimizer],
                "batch_size": key.batch_size,
                "best_lr": best[0] if best else None,
                "amount": search.objective.amount(best[1]) if best else None,
                "of": search.objective.column,
                "done": done,
                "planned": planned,
            }
        )
    return rows


def bars(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a bar for every row, as long as the logarithm of its amount, so that the bars show the curve.

    If amounts are steps, a ``|`` in a bar marks where perfect scaling from the smallest batch size would end.
    """
    first: dict[str, tuple[int, float]] = {}
    for row in rows:
        if row["amount"] is not None and row["amount"] > 0 and row["of"] == "steps":
            first.setdefault(row["optimizer"], (row["batch_size"], row["amount"]))
    perfect: list[float | None] = []
    for row in rows:
        size, amount = first.get(row["optimizer"], (1, math.nan))
        perfect.append(None if math.isnan(amount) else amount * size / row["batch_size"])
    logs = [_log(row["amount"]) for row in rows]
    ends = [value for value in (*logs, *map(_log, perfect)) if value is not None]
    low, high = min(ends, default=0.0), max(ends, default=0.0)

    def length(value: float) -> int:
        return 1 + round((BAR - 1) * (value - low) / (high - low)) if high > low else BAR

    texts = []
    for value, ideal in zip(logs, map(_log, perfect), strict=True):
        text = "" if value is None else "=" * length(value)
        if value is not None and ideal is not None and length(ideal) < len(text):
            text = text[: length(ideal) - 1] + "|" + text[length(ideal) :]
        texts.append(text)
    return texts


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the rows as lines to print, with a heading first; nothing if there are no rows."""
    if not rows:
        return
    across = max(9, *(len(row["optimizer"]) for row in rows))
    yield f"{'optimizer':<{across}} {'batch':>7} {'best LR':>9} {rows[0]['of']:>8} {'trials':>8}  {HEADING}"
    for row, bar in zip(rows, bars(rows), strict=True):
        lr = "-" if row["best_lr"] is None else f"{row['best_lr']:.3g}"
        amount = "-" if row["amount"] is None else f"{row['amount']:.4g}"
        trials = f"{row['done']}/{row['planned']}"
        yield f"{row['optimizer']:<{across}} {row['batch_size']:>7} {lr:>9} {amount:>8} {trials:>8}  {bar}".rstrip()
    if any("|" in bar for bar in bars(rows)):
        yield "| marks perfect scaling from the smallest batch size"
