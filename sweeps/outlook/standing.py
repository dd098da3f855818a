"""Progress of a running sweep: the best learning rates so far, the curve as it stands, and what is left.

The running sweep shows it on its screen and writes it to the lock of its folder, where ``cbs status`` reads it. How
long it still takes is estimated by simulating the rest of the search at the pace of the trials that ended: counting
only the planned trials would be too few, because most are requested only after earlier ones have ended.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult
from sweeps.outlook.remaining import outlook
from sweeps.search.search import Search
from sweeps.spec.cell import Cell

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


ENOUGH = 3
"""Number of trials that have to end before a pace is estimated."""

RECENT = 6
"""Number of latest trials whose pace is assumed for the trials to come."""

LEAST_SHARE = 0.01
"""If the steps took less than this share of every trial, all of its time is taken for theirs."""

DRAWS, SEED_NOISE = 3, 0.1
"""Number of simulations that are averaged, and the noise of log steps in them: that of seeds is 3 to 15 %."""

SHARE = 0.02
"""Largest share of a thread's time that the simulations may take; see :class:`Forecast`."""


@dataclass(frozen=True)
class TimeLeft:
    """Expected remaining effort of a sweep.

    Attributes:
        trials: number of trials that have not ended, including the running ones.
        seconds: seconds until the last one ends.
    """

    trials: int
    seconds: float


def pace(results: Sequence[TrialResult]) -> tuple[Callable[[TrialConfig], float], float] | None:
    """Return a function giving the seconds of a trial's step, and the seconds that every trial takes besides.

    They are estimated from how long trials took; ``None`` if fewer than :data:`ENOUGH` recorded it. A trial takes a
    constant (most evaluations come early, whatever its length), a constant per step and a constant per example (least
    squares of relative errors), times a factor for every optimizer, times a factor for the last :data:`RECENT` trials,
    because the load of a machine varies.

    Args:
        results: trials in the order in which they ended.
    """
    timed = [result for result in results if result.final_step > 0 and _seconds(result) > 0]
    if len(timed) < ENOUGH:
        return None
    seconds = np.array([_seconds(result) for result in timed])
    work = np.array([[result.final_step, result.final_examples, 1.0] for result in timed], dtype=float)
    from scipy.optimize import nnls  # importing it takes a second, so not at every start

    (step, example, trial), _ = nnls(work / seconds[:, None], np.ones(len(timed)))
    if (work[:, :2] @ (step, example) < LEAST_SHARE * seconds).all():  # as on a machine that is busy
        (step, example), _ = nnls(work[:, :2] / seconds[:, None], np.ones(len(timed)))
        trial = 0.0
    optimizers = [Cell.of(result.config).optimizer for result in timed]
    off = np.log(seconds / (work @ (step, example, trial)))
    logs = {name: float(off[[name == other for other in optimizers]].mean()) for name in optimizers}
    lately = float((off - [logs[name] for name in optimizers])[-RECENT:].mean())

    def of(config: TrialConfig) -> float:
        log = logs.get(Cell.of(config).optimizer, float(off.mean()))
        return float(step + example * config.batch_size) * math.exp(log + lately)

    return of, float(trial) * math.exp(float(off.mean()) + lately)


def _seconds(result: TrialResult) -> float:
    seconds = result.timing.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else 0.0


class Forecast:
    """Estimates the time left of a search as the mean of the last :data:`DRAWS` simulations, with at most one new
    simulation per call.

    Args:
        workers: number of trials at a time; 0 if only the cluster knows it, then the number of running trials is used.
        share: largest share of the time of the calling thread, which manages the trials, that simulations may take.
    """

    def __init__(self, workers: int, share: float = SHARE) -> None:
        self._workers, self._share = workers, share
        self._results: dict[str, TrialResult] = {}
        self._plays: deque[tuple[int, int, float]] = deque(maxlen=DRAWS)
        """For each simulation: number of trials that had ended, number still to come, and time at which the last
        ends."""
        self._each = 0.0
        """Seconds that every further trial adds."""
        self._count, self._next = 0, -math.inf

    def __call__(self, search: Search, running: Mapping[str, float]) -> TimeLeft | None:
        """Return what is left of ``search``; ``None`` as long as nothing is known.

        Args:
            search: search of the sweep.
            running: steps taken by the running trials, by trial id.
        """
        for result in search.trials():
            self._results.setdefault(result.trial_id, result)
        ended, now = len(self._results), time.monotonic()
        new = len(self._plays) < DRAWS or any(play[0] != ended for play in self._plays)
        if new and now >= self._next:
            began = time.thread_time()
            self._play(search, running)
            self._next = time.monotonic() + (time.thread_time() - began) / self._share
        if not self._plays:
            return None
        ends = [play[2] for play in self._plays]
        trials = [max(0, play[1] - (ended - play[0])) for play in self._plays]
        done, planned = search.all_counts()
        least = max(0, planned - done - len(search.running)) * self._each
        return TimeLeft(round(float(np.mean(trials))), max(least, float(np.mean(ends)) - now))

    def _play(self, search: Search, running: Mapping[str, float]) -> None:
        results, now = list(self._results.values()), time.monotonic()
        known = pace(results)
        if known is None:
            return
        of, each = known
        workers = self._workers or max(1, len(running))
        self._count += 1
        _, played = outlook(
            search.sweep,
            results,
            None,
            workers,
            seconds_per_step=of,
            seconds_per_trial=each,
            noise=SEED_NOISE,
            draw=self._count % DRAWS + 1,
        )
        under_way = {trial_id: of(search.config(*place)) for trial_id, place in search.running.items()}
        done = sum(running.get(trial_id, 0.0) * seconds for trial_id, seconds in under_way.items())
        seconds = played.seconds - done / workers
        self._each = played.seconds / max(1, len(played.results))
        self._plays.append((len(results), len(played.results), now + max(0.0, seconds)))
