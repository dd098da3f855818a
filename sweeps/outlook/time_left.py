"""How long a running sweep still takes: the search played through from where it is, at the pace of the trials that have
ended.

Counting the trials that are planned says too little, as most of them are asked for only once earlier ones have ended.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult
from sweeps.outlook.remaining import outlook
from sweeps.search.search import Search
from sweeps.spec.cell import Cell

ENOUGH = 3
"""Trials that have ended from which on there is a pace."""

RECENT = 6
"""Trials whose pace is taken for that of those to come."""

DRAWS, SEED_NOISE = 3, 0.1
"""How often the search is played through for a mean, and the noise of log steps in it: that of seeds is 3 to 15 %."""

SHARE = 0.02
"""See :class:`Forecast`."""


@dataclass(frozen=True)
class TimeLeft:
    """What is expected.

    Attributes:
        trials: that have not ended, those under way included.
        seconds: until the last one ends.
    """

    trials: int
    seconds: float


def pace(results: Sequence[TrialResult]) -> Callable[[TrialConfig], float] | None:
    """Seconds of a step by trial, its share of the evaluations included, from how long trials took; ``None`` where
    fewer than :data:`ENOUGH` say.

    A step takes a time of its own and one for every example (least squares of relative errors), every optimizer a
    multiple of that, and all of them what the last :data:`RECENT` trials took beside the earlier ones, as a machine is
    not always as busy.

    Args:
        results: trials in the order in which they ended.
    """
    timed = [result for result in results if result.final_step > 0 and _seconds(result) > 0]
    if len(timed) < ENOUGH:
        return None
    seconds = np.array([_seconds(result) for result in timed])
    work = np.array([[result.final_step, result.final_examples] for result in timed], dtype=float)
    from scipy.optimize import nnls  # a second of every start

    each, _ = nnls(work / seconds[:, None], np.ones(len(timed)))
    optimizers = [Cell.of(result.config).optimizer for result in timed]
    off = np.log(seconds / (work @ each))
    logs = {name: float(off[[name == other for other in optimizers]].mean()) for name in optimizers}
    lately = float((off - [logs[name] for name in optimizers])[-RECENT:].mean())

    def of(config: TrialConfig) -> float:
        log = logs.get(Cell.of(config).optimizer, float(off.mean()))
        return float(each @ (1.0, config.batch_size)) * math.exp(log + lately)

    return of


def _seconds(result: TrialResult) -> float:
    seconds = result.timing.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else 0.0


class Forecast:
    """The time left of a search: the mean of the last :data:`DRAWS` times that it was played through, at most once a
    call.

    Args:
        workers: trials at a time; 0 where only the cluster knows, and then as many as run.
        share: most of the time of the thread that sees to the trials which this may take.
    """

    def __init__(self, workers: int, share: float = SHARE) -> None:
        self._workers, self._share = workers, share
        self._results: dict[str, TrialResult] = {}
        self._plays: deque[tuple[int, int, float]] = deque(maxlen=DRAWS)
        """Of each: the trials that had ended, those to come, and when the last one ends."""
        self._each = 0.0
        """Seconds that every trial to come adds."""
        self._count, self._next = 0, -math.inf

    def __call__(self, search: Search, running: Mapping[str, float]) -> TimeLeft | None:
        """What is left of ``search``; ``None`` while nothing is known.

        Args:
            search: the sweep.
            running: steps of the trials under way, by trial id.
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
        ends, trials = ([play[place] for play in self._plays] for place in (2, 1))
        done, planned = search.all_counts()
        least = max(0, planned - done - len(search.running)) * self._each
        return TimeLeft(round(float(np.mean(trials))), max(least, float(np.mean(ends)) - now))

    def _play(self, search: Search, running: Mapping[str, float]) -> None:
        results, now = list(self._results.values()), time.monotonic()
        of = pace(results)
        if of is None:
            return
        workers = self._workers or max(1, len(running))
        self._count += 1
        end, played = outlook(
            search.sweep, results, None, workers, seconds_per_step=of, noise=SEED_NOISE, draw=self._count % DRAWS + 1
        )
        further = list(_further(search, end, of))
        under_way = {trial_id: of(search.config(*place)) for trial_id, place in search.running.items()}
        done = sum(running.get(trial_id, 0.0) * seconds for trial_id, seconds in under_way.items())
        seconds = played.seconds + max(sum(further) / workers, *further, 0.0) - done / workers
        self._each = played.seconds / max(1, len(played.results))
        self._plays.append((len(results), len(played.results), now + max(0.0, seconds)))


def _further(search: Search, end: Search, of: Callable[[TrialConfig], float]) -> Iterator[float]:
    """Seconds of trials that are not foreseen, one value for every study that is not done: as many as the done ones of
    its optimizer took on average beyond what is foreseen for it at the ``end``. What is foreseen has little noise, and
    noise costs trials, one after the other."""
    done: dict[str, list[int]] = {}
    studies = search.sweep.studies()
    for study in studies:
        ended, planned = search.counts(study)
        if ended == planned > 0:
            done.setdefault(study.optimizer, []).append(planned)
    for study in studies:
        ended, planned = search.counts(study)
        if (ended == planned > 0) or study.optimizer not in done or (best := end.best(study)) is None:
            continue
        steps = search.sweep.budget(study.batch_size) if search.sweep.budgets else best[1]
        config = search.config(Cell(study.optimizer, study.batch_size, search.sweep.seeds[0]), best[0])
        more = float(np.mean(done[study.optimizer])) - end.counts(study)[1]
        yield max(0.0, more) * steps * of(config)
