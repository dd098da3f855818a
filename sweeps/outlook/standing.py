"""Progress of a running sweep: the best learning rates so far, the curve as it stands, and what is left.

The running sweep shows it on its screen and writes it to the lock of its folder, where ``cbs status`` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeps.outlook.time_left import Forecast, TimeLeft
from sweeps.search.search import Search

BAR = 16
"""Length of the longest bar in characters."""

HEADING = "log scale"
"""Column heading of the bars; see :func:`bars`."""


class SweepStanding:
    """Progress of a running sweep as plain JSON values: ``studies``, ``trials_left`` and ``seconds_left``; the last two
    are ``None`` until enough trials have ended.

    Args:
        workers: number of trials at a time; 0 if only the cluster knows it.
    """

    def __init__(self, workers: int) -> None:
        self._forecast = Forecast(workers)

    def __call__(self, search: Search, running: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        left = self.left(search, running)
        return {
            "studies": rows_of(search),
            "trials_left": None if left is None else left.trials,
            "seconds_left": None if left is None else left.seconds,
        }

    def left(self, search: Search, running: Mapping[str, dict[str, Any]]) -> TimeLeft | None:
        """Return what is expected still to come; ``running`` holds the latest heartbeats of running trials."""
        return self._forecast(search, {trial_id: float(at.get("step") or 0) for trial_id, at in running.items()})


def rows_of(search: Search) -> list[dict[str, Any]]:
    """Return one row for every optimizer and batch size.

    A row has ``best_lr`` and its ``amount`` (mean steps to the target over the seeds so far, or the metric after a
    budget; ``of`` says which), and the numbers of ``done`` and ``planned`` trials.
    """
    rows = []
    for study in search.sweep.studies():
        best, (done, planned) = search.best(study), search.counts(study)
        rows.append(
            {
                "optimizer": search.sweep.axes.labels[study.optimizer],
                "batch_size": study.batch_size,
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
