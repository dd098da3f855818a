r"""Compare a run under a batch schedule with every constant batch size.

Constant batch sizes trace :math:`S(B)`, with :math:`E = B S`. A scheduled run took S steps and E examples to the same
target. At equal examples, the best constant batch size is the largest one whose examples do not exceed E; at equal
steps, it is the one with the fewest examples among those whose steps do not exceed S. On the hyperbola
:math:`(S/S_{min} - 1)(E/E_{min} - 1) = 1` for every constant batch size, so a run with

.. math:: \gamma = (S/S_{min} - 1)(E/E_{min} - 1)

below 1 beats them all (McCandlish et al. 2018, arXiv 1812.06162, appendix D; a noise scale that grows as the square
root of the progress allows .96). Without a hyperbola there is no :math:`E_{min}`, and only the savings against the
curve remain. That curve is known where it is drawn, up to a factor of e beyond the measured batch sizes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimate.draws import Draws
from analysis.estimate.prior import StepsCurve
from analysis.formatting import plural
from analysis.quantities import UNKNOWN, Array, Quantity
from analysis.read.results import Results
from analysis.read.throughput import StepTime, StepTimeTable, of_logs
from cbs.errors import ResultsError
from cbs.trial.store import finite_or_none
from cbs.trial.trial_files import read_timing

_MACHINE = ("device", "host", "threads")


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """One scheduled run that reached the target.

    Attributes:
        steps: steps to the target.
        examples: examples seen by then.
        batch_size: batch size in force at the target.
        changed: whether the batch size had changed by then.
        seconds: time that it took; NaN if a step time is unknown.
    """

    steps: float
    examples: float
    batch_size: float
    changed: bool = True
    seconds: float = math.nan


@dataclass(frozen=True, kw_only=True)
class ScheduleGain:
    """What a schedule gains over constant batch sizes.

    Attributes:
        steps, examples: steps and examples to the target, geometric means over seeds.
        gamma: see the module docstring; 0 or negative if the run lies below an asymptote.
        steps_saved: fraction of the steps of the best constant batch size at equal examples that is saved; negative if
            the schedule takes more, no value if the curve has no such batch size.
        examples_saved: fraction of the examples of the best constant batch size at equal steps that is saved, likewise.
        seconds: time to the target, geometric mean over seeds; no value without step times.
        seconds_saved: seconds saved against the best constant batch size at equal examples; negative if the schedule
            takes longer.
        equal_examples, equal_steps: these constant batch sizes; ``None`` if the drawn curve has none.
        beats: probability, over the draws, that it saves steps.
    """

    steps: Quantity
    examples: Quantity
    gamma: Quantity = UNKNOWN
    steps_saved: Quantity = UNKNOWN
    examples_saved: Quantity = UNKNOWN
    seconds: Quantity = UNKNOWN
    seconds_saved: Quantity = UNKNOWN
    equal_examples: float | None = None
    equal_steps: float | None = None
    beats: float | None = None


def compare(
    draws: Draws,
    runs: Sequence[ScheduledRun],
    confidence: float,
    *,
    hyperbola: StepsCurve | None = None,
    step_times: Callable[[Array], Array] | None = None,
    step_factors: Callable[..., Array] | None = None,
    seed: int = 0,
) -> ScheduleGain:
    """Compare a schedule's runs, one per seed, with the curve of constant batch sizes.

    The interval includes the uncertainty of the curve and the noise of the scheduled seeds, see :func:`_scatter`. Along
    its schedule, a slow seed also sees more examples; the remaining scatter of its examples is drawn independently.

    Args:
        draws: draws of the curve of constant batch sizes.
        runs: scheduled runs, at least one.
        confidence: confidence of the intervals.
        hyperbola: draws of that curve as a hyperbola; ``None`` if it is none, and gamma has no meaning.
        step_times: function from batch sizes to seconds per step, NaN where unknown.
        step_factors: function from batch sizes ``[K]`` and a ``count`` to random factors on their step times that
            represent the measurement error, ``[count, K]``.
        seed: seed of the random numbers.
    """
    log_steps, log_examples = (np.log([getattr(run, name) for run in runs]) for name in ("steps", "examples"))
    slope = float(np.mean([run.batch_size * run.steps / run.examples for run in runs]))
    rng, count = np.random.default_rng(seed), draws.count
    drawn = _scatter(draws, log_steps) * rng.standard_normal(count)
    beside, apart = (log_examples - log_examples.mean()) - slope * (log_steps - log_steps.mean()), np.zeros(count)
    if len(runs) > 2:
        apart = float(np.std(beside, ddof=2)) / math.sqrt(len(runs)) * rng.standard_t(len(runs) - 2, count)
    s, e = float(log_steps.mean()), float(log_examples.mean())
    # what was measured, then the draws
    steps = np.append(math.exp(s), np.exp(s + drawn))
    with np.errstate(over="ignore"):
        examples = np.append(math.exp(e), np.exp(e + slope * drawn + apart))
    curves = np.vstack([draws.mean, draws.curves])
    fewest, at_examples = fewest_steps(draws.log_sizes, curves, examples)
    cheapest, at_steps = fewest_examples(draws.log_sizes, curves, steps)
    saved = 1.0 - steps / fewest
    seconds = sooner = np.full(1 + count, math.nan)
    if step_times is not None:
        took = math.exp(float(np.mean(np.log([run.seconds for run in runs]))))
        # a slow seed takes its additional steps at the batch size in force at the target
        last = step_times(np.array([run.batch_size for run in runs]))
        rate = float(np.mean([own * run.steps / run.seconds for own, run in zip(last, runs, strict=True)]))
        seconds = np.append(took, took * np.exp(rate * drawn))
        # if no constant batch size takes so few examples, it never reaches the target
        constant = fewest * step_times(at_examples)
        if step_factors is not None:
            sizes = np.array([at_examples[0], *(run.batch_size for run in runs)])
            factors = step_factors(np.where(np.isfinite(sizes), sizes, sizes[-1]), count=count)
            constant[1:] *= factors[:, 0]
            seconds[1:] *= np.exp(np.log(factors[:, 1:]).mean(axis=1))
        sooner = np.where(np.isinf(fewest), np.inf, constant) - seconds
    gamma = UNKNOWN
    if hyperbola is not None:
        curve = hyperbola.mapped(lambda values: np.append(np.median(values), values))
        gamma = _quantity(product(curve, steps, examples), confidence)
    return ScheduleGain(
        steps=_quantity(steps, confidence),
        examples=_quantity(examples, confidence),
        gamma=gamma,
        steps_saved=_quantity(saved, confidence, at_examples[0]),
        examples_saved=_quantity(1.0 - examples / cheapest, confidence, at_steps[0]),
        seconds=_quantity(seconds, confidence),
        seconds_saved=_quantity(sooner, confidence, at_examples[0]),
        equal_examples=finite_or_none(at_examples[0]),
        equal_steps=finite_or_none(at_steps[0]),
        beats=float((saved[1:] > 0).mean()),
    )


def _scatter(draws: Draws, log_steps: Array) -> Array:
    """Return the standard deviation of the mean over scheduled seeds, of every draw, shape ``[R]``.

    One run scatters as the drawn runs of constant batch sizes pooled with the scheduled ones; if these scatter more, as
    they do. With one seed each, what is drawn is the prior, which counts as one degree of freedom.
    """
    freedom, more = max(draws.freedom, 1), len(log_steps) - 1
    own = float(np.var(log_steps, ddof=1)) if more else 0.0
    pooled = (freedom * draws.own**2 + more * own) / (freedom + more)
    return np.sqrt(np.maximum(pooled, own) / len(log_steps))


def product(curve: StepsCurve, steps: Array, examples: Array) -> Array:
    """Return gamma, shape ``[R]``; negative if one or both factors are negative."""
    over = [steps / curve.min_steps - 1.0, examples / curve.min_examples - 1.0]
    size = np.abs(over[0] * over[1])
    return np.where((over[0] <= 0) | (over[1] <= 0), -size, size)


def fewest_steps(log_sizes: Array, curves: Array, examples: Array) -> tuple[Array, Array]:
    """Return the steps of the best constant batch size with at most ``examples`` ``[R]`` examples, and that batch size,
    each ``[R]``, by the curves (:class:`analysis.estimate.draws.Draws`, ``[R, G]``).

    Infinity and NaN if every batch size takes more; NaN twice if a larger one than those drawn may be best.
    """
    return _least(log_sizes, curves, log_sizes + curves, np.log(examples), outside=-1)


def fewest_examples(log_sizes: Array, curves: Array, steps: Array) -> tuple[Array, Array]:
    """Return the examples of the best constant batch size with at most ``steps`` ``[R]`` steps, and that batch size,
    likewise; NaN twice if a smaller one than those drawn may be best."""
    return _least(log_sizes, log_sizes + curves, curves, np.log(steps), outside=0)


def _least(log_sizes: Array, wanted: Array, limited: Array, limit: Array, outside: int) -> tuple[Array, Array]:
    """Return the least ``exp(wanted)`` where ``limited`` is at most ``limit`` along curves ``[R, G]`` that are straight
    between their points, and the batch size there; ``outside`` is the end beyond which there may be less."""
    over = limited - limit[:, None]
    before, after = over[:, :-1], over[:, 1:]
    crosses = (before > 0) != (after > 0)
    with np.errstate(invalid="ignore"):  # the limit may be infinite
        share = np.where(crosses, before / np.where(crosses, before - after, 1.0), 0.0)
    # the least of straight pieces lies at a point, or where the limit is crossed
    between = wanted[:, :-1] + share * np.diff(wanted, axis=1)
    positions = log_sizes[:-1] + share * np.diff(log_sizes)
    every = np.hstack([np.where(over <= 0, wanted, np.inf), np.where(crosses, between, np.inf)])
    positions = np.hstack([np.broadcast_to(log_sizes, over.shape), positions])
    rows, best = np.arange(len(every)), every.argmin(axis=1)
    values, at = np.exp(every[rows, best]), np.exp(positions[rows, best])
    beyond = best == outside % over.shape[1]
    return np.where(beyond & np.isfinite(values), np.nan, values), np.where(beyond | np.isinf(values), np.nan, at)


def _quantity(rows: Array, confidence: float, against: float = 0.0) -> Quantity:
    """Return the first of ``rows`` with the interval of the others; no value if the batch size ``against`` which it was
    compared does not exist."""
    found = Quantity.open_ended(rows, confidence)
    return found if np.isfinite(against) else Quantity(None, found.interval)


def trial_times(results: Results) -> tuple[StepTimeTable | None, str]:
    """Return seconds per step at every constant batch size, the median over its trials, or why there are none.

    They are the seconds of all optimizer updates of a trial, including measurements but not evaluations, divided by its
    steps. Trials on different machines are not pooled: there are no times then.
    """
    rows = [_row(*trial) for trial in results.trials[["folder", "group", "batch_size", "final_step"]].itertuples(False)]
    known = pd.DataFrame([row for row in rows if row is not None])
    if known.empty:
        return None, "no trial recorded how long its steps took"
    machines = known[list(_MACHINE)].astype(str).drop_duplicates()
    if len(machines) > 1:
        return None, f"the trials ran on {plural(len(machines), 'machine')} that differ, so their times do not compare"
    times = [
        StepTime(
            batch_size=int(size),
            devices=int(workers),
            seconds=float(np.median(part["seconds"])),
            optimizer=results.groups[int(group)].optimizer,
            interval=of_logs(np.log(part["seconds"].to_numpy()))[1],
            repetitions=len(part),
        )
        for (group, workers, size), part in known.groupby(["group", "workers", "batch_size"])
    ]
    (machine,) = machines.itertuples(index=False)
    source = f"the trials themselves (on {machine.device or 'a device'}; trials that run side by side slow one another)"
    return StepTimeTable(tuple(times), source), ""


def _row(folder: Path, group: int, batch_size: int, steps: int) -> dict[str, Any] | None:
    """Return what a trial recorded; ``None`` if nothing usable."""
    try:
        timing = read_timing(folder / "timing.json")
        seconds, workers = float(timing["training_seconds"]), int(timing.get("workers", 1))
    except (ResultsError, ValueError, TypeError, KeyError):
        return None  # imported trials have none, and a missing time is no reason to refuse the sweep
    if not (steps and 0 < seconds < np.inf and workers > 0):
        return None
    about = {name: timing.get(name, "") for name in _MACHINE}
    return about | {"group": group, "batch_size": batch_size, "workers": workers, "seconds": seconds / steps}
