r"""Compare a run under a batch schedule with every constant batch size.

Constant batch sizes trace :math:`S(B)`, with :math:`E = B S`. A scheduled run took S steps and E examples to the same
target. At equal examples, the best constant batch size is the largest one whose examples do not exceed E; at equal
steps, it is the one with the fewest examples among those whose steps do not exceed S. On the hyperbola
:math:`(S/S_{min} - 1)(E/E_{min} - 1) = 1` for every constant batch size, so a run with

.. math:: \gamma = (S/S_{min} - 1)(E/E_{min} - 1)

below 1 beats them all (McCandlish et al. 2018, arXiv 1812.06162, appendix D; a noise scale that grows as the square
root of the progress allows .96). Without a hyperbola there is no :math:`E_{min}`, and only the savings against the
curve remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity
from analysis.estimate.curves import StepsCurve
from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.form_fits import widening
from cbs.trial.store import finite_or_none

_HALVINGS = 80


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
            the schedule takes more, no value if there is no such batch size.
        examples_saved: fraction of the examples of the best constant batch size at equal steps that is saved, likewise.
        seconds: time to the target, geometric mean over seeds; no value without step times.
        seconds_saved: seconds saved against the best constant batch size at equal examples; negative if the schedule
            takes longer.
        equal_examples, equal_steps: these constant batch sizes; ``None`` if none has so few examples, or steps.
        beats: probability, over the resamples, that it saves steps.
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
    fit: Fit,
    runs: Sequence[ScheduledRun],
    confidence: float,
    *,
    hyperbola: bool,
    step_times: Callable[[Array], Array] | None = None,
    step_factors: Callable[[Array, int], Array] | None = None,
    seed: int = 0,
) -> ScheduleGain:
    """Compare a schedule's runs, one per seed, with the curve of constant batch sizes.

    The interval includes the uncertainty of the curve and the noise of the scheduled seeds. Log steps of a seed scatter
    with the larger of two standard deviations: that of the curve's seeds pooled with their own, and their own. Along
    its schedule, a slow seed also sees more examples; the remaining scatter of its examples is drawn independently.

    Args:
        fit: fit to the constant batch sizes.
        runs: scheduled runs, at least one.
        confidence: confidence of the intervals.
        hyperbola: whether the curve is a hyperbola, so that gamma is meaningful.
        step_times: function from batch sizes to seconds per step, NaN where unknown.
        step_factors: function from batch sizes ``[K]`` and a count to random factors on their step times that represent
            the measurement error, ``[count, K]``.
        seed: seed of the random numbers.
    """
    log_steps, log_examples = (np.log([getattr(run, name) for run in runs]) for name in ("steps", "examples"))
    slope = float(np.mean([run.batch_size * run.steps / run.examples for run in runs]))
    rng, count = np.random.default_rng(seed), len(fit.resampled.critical)
    own = float(np.var(log_steps, ddof=1)) if len(runs) > 1 else 0.0
    freedom = fit.freedom + len(runs) - 1
    pooled = (fit.freedom * fit.deviation**2 + (len(runs) - 1) * own) / freedom if freedom else own
    scale = math.sqrt(max(pooled, own)) * widening(max(freedom, 1.0), confidence) / math.sqrt(len(runs))
    beside = (log_examples - log_examples.mean()) - slope * (log_steps - log_steps.mean())
    apart = 0.0
    if len(runs) > 2:
        apart = float(np.std(beside, ddof=2)) * widening(len(runs) - 2, confidence) / math.sqrt(len(runs))
    drawn = scale * rng.standard_normal(count)
    s, e = float(log_steps.mean()), float(log_examples.mean())
    # what was measured, then the resamples
    steps = np.append(math.exp(s), np.exp(s + drawn))
    examples = np.append(math.exp(e), np.exp(e + slope * drawn + apart * rng.standard_normal(count)))
    curve = fit.estimate.then(fit.resampled)
    fewest, at_examples = fewest_steps(curve, examples)
    cheapest, at_steps = fewest_examples(curve, steps)
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
        if step_factors is not None and count:
            sizes = np.array([at_examples[0], *(run.batch_size for run in runs)])
            factors = step_factors(np.where(np.isfinite(sizes), sizes, sizes[-1]), count)
            constant[1:] *= factors[:, 0]
            seconds[1:] *= np.exp(np.log(factors[:, 1:]).mean(axis=1))
        sooner = np.where(np.isnan(at_examples), np.inf, constant) - seconds
    gamma = product(fit.hyperbola.then(fit.resampled_hyperbola), steps, examples)
    return ScheduleGain(
        steps=_quantity(steps, confidence),
        examples=_quantity(examples, confidence),
        gamma=_quantity(gamma, confidence) if hyperbola else UNKNOWN,
        steps_saved=_quantity(saved, confidence, at_examples[0]),
        examples_saved=_quantity(1.0 - examples / cheapest, confidence, at_steps[0]),
        seconds=_quantity(seconds, confidence),
        seconds_saved=_quantity(sooner, confidence, at_examples[0]),
        equal_examples=finite_or_none(at_examples[0]),
        equal_steps=finite_or_none(at_steps[0]),
        beats=float((saved[1:] > 0).mean()) if count else None,
    )


def product(curve: StepsCurve, steps: Array, examples: Array) -> Array:
    """Return gamma, shape ``[R]``; negative if one or both factors are negative; infinity if an asymptote is 0."""
    with np.errstate(all="ignore"):
        over = [steps / curve.min_steps - 1.0, examples / curve.min_examples - 1.0]
        size = np.abs(over[0] * over[1])
    below = (over[0] <= 0) | (over[1] <= 0)
    return np.where(below, -size, np.where(np.isnan(size), np.inf, size))


def fewest_steps(curve: StepsCurve, examples: Array) -> tuple[Array, Array]:
    """Return the steps of the best constant batch size with at most ``examples`` examples, and that batch size, each
    ``[R]``; infinity and NaN if every batch size takes more."""
    wanted, cheapest = np.log(examples), curve.log_cheapest

    def log_examples(log_sizes: Array) -> Array:
        return np.asarray(log_sizes + curve.log_steps(np.exp(log_sizes)[:, None])[:, 0])

    # beyond the batch size with the fewest examples they only grow, and steps never fall below the fewest
    high = wanted - curve.log_min_steps
    low = np.where(np.isfinite(cheapest), cheapest, high - 200.0)
    none = log_examples(low) >= wanted
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = log_examples(middle) > wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    steps = np.exp(curve.log_steps(np.exp(low)[:, None])[:, 0])
    return np.where(none, np.inf, steps), np.where(none, np.nan, np.exp(low))


def fewest_examples(curve: StepsCurve, steps: Array) -> tuple[Array, Array]:
    """Return the examples of the best constant batch size with at most ``steps`` steps, and that batch size, each
    ``[R]``; infinity and NaN if every batch size takes more."""
    log_sizes = np.maximum(curve.log_sizes(np.log(steps)), curve.log_cheapest)
    none = np.isnan(log_sizes)
    sizes = np.exp(np.where(none, 0.0, log_sizes))
    examples = sizes * np.exp(curve.log_steps(sizes[:, None])[:, 0])
    return np.where(none, np.inf, examples), np.where(none, np.nan, sizes)


def _quantity(rows: Array, confidence: float, against: float = 0.0) -> Quantity:
    """Return the first of ``rows`` with the interval of the others; no value if the batch size ``against`` which it was
    compared does not exist."""
    found = Quantity.open_ended(rows, confidence)
    return found if np.isfinite(against) else Quantity(None, found.interval)
