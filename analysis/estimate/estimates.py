"""From the studies of one optimizer to its critical batch sizes: the fit, every definition of it, and the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.arrays import Array
from analysis.estimate.definitions import Definition, Sample
from analysis.estimate.diagnosis import Doubts, Verdict, judge
from analysis.estimate.fitting import Fit, fit_curve, interval
from analysis.estimate.fitting.power import PowerEstimate, power_law
from analysis.estimate.fitting.quality import LeaveOneOut, lack_of_fit, leave_one_out
from analysis.estimate.studies import Point, Study, point
from cbs.store import finite_or_none

Interval = tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class Critical:
    """A critical batch size by one definition.

    Attributes:
        definition: its name.
        options: the options it was evaluated with.
        value: examples; ``None`` where the data do not bound it, or the definition does not apply.
        interval: of ``value``; an open end is ``None``.
        remark: what has to be said about it; empty if nothing.
        resampled: its value on every resample, shape ``[R]``; 0, infinity or NaN as :class:`Definition` says.
    """

    definition: str
    options: dict[str, Any]
    value: float | None
    interval: Interval
    remark: str
    resampled: Array = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values without the resamples."""
        return {
            "definition": self.definition,
            "options": self.options,
            "critical_batch_size": self.value,
            "interval": list(self.interval),
            "remark": self.remark,
        }


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the studies of one optimizer say at one target.

    Attributes:
        studies: steps to target of every learning rate and seed, per batch size.
        points: one per batch size.
        fit: the curve through the points; ``None`` when the target was reached at fewer than two batch sizes.
        critical: by name of the definition.
        min_steps, min_examples: asymptotes of the fit, with their intervals; ``None`` where not seen.
        verdict: see :class:`Verdict`.
        advice: what to change; empty when nothing is missing.
        lack_of_fit: probability of residuals as large as these if the curve is the hyperbola, see
            :func:`analysis.estimate.fitting.quality.lack_of_fit`; ``None`` where undefined.
        left_out: the critical batch size without one batch size at a time; ``None`` below 4 that reached the target.
        power_law: the curve with a free exponent; ``None`` below 4, too.
        seen: whether the measured batch sizes show the perfect-scaling part and the saturating part of the curve.
    """

    studies: tuple[Study, ...] = field(repr=False)
    points: tuple[Point, ...]
    fit: Fit | None = field(repr=False)
    critical: dict[str, Critical]
    min_steps: float | None
    min_steps_interval: Interval
    min_examples: float | None
    min_examples_interval: Interval
    verdict: Verdict
    advice: str
    lack_of_fit: float | None = None
    left_out: LeaveOneOut | None = field(default=None, repr=False)
    power_law: PowerEstimate | None = None
    seen: tuple[bool, bool] = (False, False)

    @property
    def leave_one_out(self) -> Interval | None:
        """Lowest and highest critical batch size (``E_min / S_min``) of refits without one batch size, in examples; an
        end that the rest leaves open is ``None``. ``None`` where undefined."""
        return None if self.left_out is None else self.left_out.range

    def quality_json(self) -> dict[str, Any]:
        """What says whether the fit can be believed, as plain JSON values."""
        return {
            "lack_of_fit": self.lack_of_fit,
            "leave_one_out": None if self.leave_one_out is None else list(self.leave_one_out),
            "power_law": None if self.power_law is None else self.power_law.to_json(),
        }


def fit_studies(studies: Sequence[Study], *, confidence: float, resamples: int, seed: int) -> Fit | None:
    """The curve through the studies; ``None`` when fewer than two reached the target.

    Seeds, and whole studies, that ran without reaching it enter as lower bounds.
    """
    if sum(study.winner is not None for study in studies) < 2:
        return None
    return fit_curve(
        [study.batch_size for study in studies],
        [study.steps for study in studies],
        bounds=[study.bound for study in studies],
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def estimates(
    curves: Sequence[Sequence[Study]],
    definitions: Mapping[str, Definition],
    *,
    targets: Sequence[float | None],
    not_reached: Sequence[str],
    easier: Sequence[str],
    confidence: float,
    resamples: int,
    seed: int,
) -> list[Estimate]:
    """One estimate per target of one optimizer.

    Args:
        curves: the studies at every target.
        definitions: by name.
        targets: value of the metric at every target; ``None`` where it is not known.
        not_reached: advice at every target for when no batch size reached it.
        easier: at every target, which easier one was reached at every batch size; empty where there is none.
        confidence: of every interval.
        resamples: of every bootstrap; all draw with the same seed, so that they may be compared resample by resample.
        seed: of every bootstrap.
    """
    fits = [fit_studies(studies, confidence=confidence, resamples=resamples, seed=seed) for studies in curves]
    usable = [index for index, fit in enumerate(fits) if fit is not None]
    measured = [sample(fits[index], targets[index]) for index in usable]
    resampled = [sample(fits[index], targets[index], resampled=True) for index in usable]
    found = []
    for index, (studies, fit) in enumerate(zip(curves, fits, strict=True)):
        points = tuple(point(study) for study in studies)
        at = usable.index(index) if fit is not None else None
        critical = {
            name: _critical(name, definition, measured, resampled, at, confidence)
            for name, definition in definitions.items()
        }
        asymptotes = _asymptotes(fit, confidence)
        quality = _quality(studies, fit, confidence)
        doubts = Doubts(**quality, ends=(None, None) if fit is None else _ratio(fit, confidence)[1])
        seen = _seen(asymptotes, fit, confidence)
        verdict, advice = judge(points, seen, not_reached[index], easier[index], doubts)
        found.append(
            Estimate(
                studies=tuple(studies),
                points=points,
                fit=fit,
                critical=critical,
                **asymptotes,
                verdict=verdict,
                advice=advice,
                **quality,
                seen=seen,
            )
        )
    return found


def _quality(studies: Sequence[Study], fit: Fit | None, confidence: float) -> dict[str, Any]:
    """What says whether the fit can be believed, by the names it has in :class:`Estimate`."""
    if fit is None:
        return {"lack_of_fit": None, "left_out": None, "power_law": None}
    tables = [study.steps for study in studies]
    return {
        "lack_of_fit": lack_of_fit(fit, tables),
        "left_out": leave_one_out(fit, tables),
        "power_law": power_law(fit, confidence=confidence),
    }


def sample(fit: Fit | None, target: float | None, *, resampled: bool = False) -> Sample:
    """What a definition sees of a fit: the measured curve, or its resamples."""
    if fit is None:
        raise ValueError("a sample needs a fit")
    if not resampled:
        steps, examples = np.atleast_1d(fit.estimate.min_steps), np.atleast_1d(fit.estimate.min_examples)
        return Sample(fit.batch_sizes, fit.log_steps[None], steps, examples, target)
    return Sample(fit.batch_sizes, fit.measured_resamples, fit.resampled.min_steps, fit.resampled.min_examples, target)


def _critical(
    name: str,
    definition: Definition,
    measured: Sequence[Sample],
    resampled: Sequence[Sample],
    at: int | None,
    confidence: float,
) -> Critical:
    options = dataclasses.asdict(definition)  # type: ignore[call-overload]
    if at is None:
        return Critical(
            definition=name, options=options, value=None, interval=(None, None), remark="", resampled=np.empty(0)
        )
    value = float(definition(measured, at)[0])
    values = definition(resampled, at)
    low, high = interval(values, confidence)
    return Critical(
        definition=name,
        options=options,
        value=None if _beyond(value, (low, high), measured[at].batch_sizes, len(values)) else finite_or_none(value),
        interval=(low, high),
        remark=definition.remark(measured, at),
        resampled=values,
    )


def _beyond(value: float, ends: Interval, batch_sizes: Array, resamples: int) -> bool:
    """Whether a value stands for nothing but "below" or "above" the measured batch sizes."""
    if not 0 < value < math.inf:
        return True
    return _below(value, ends, batch_sizes, resamples) or _above(value, ends, batch_sizes, resamples)


def _below(value: float, ends: Interval, batch_sizes: Array, resamples: int) -> bool:
    return value == 0 or (resamples > 0 and ends[0] is None and value < batch_sizes[0])


def _above(value: float, ends: Interval, batch_sizes: Array, resamples: int) -> bool:
    return value == math.inf or (resamples > 0 and ends[1] is None and value > batch_sizes[-1])


def _ratio(fit: Fit, confidence: float) -> tuple[float, Interval]:
    """``min_examples / min_steps`` of the fit, with its interval."""
    steps, examples = float(fit.estimate.min_steps), float(fit.estimate.min_examples)
    with np.errstate(divide="ignore"):
        resampled = fit.resampled.min_examples / fit.resampled.min_steps
    return examples / steps if steps > 0 else math.inf, interval(resampled, confidence)


def _asymptotes(fit: Fit | None, confidence: float) -> dict[str, Any]:
    """Both asymptotes with their intervals; one the data do not show is ``None``."""
    if fit is None:
        return {
            "min_steps": None,
            "min_steps_interval": (None, None),
            "min_examples": None,
            "min_examples_interval": (None, None),
        }
    ratio, ends = _ratio(fit, confidence)
    resamples = len(fit.resampled_log_steps)
    return {
        "min_steps": None if _above(ratio, ends, fit.batch_sizes, resamples) else float(fit.estimate.min_steps),
        "min_steps_interval": interval(fit.resampled.min_steps, confidence),
        "min_examples": None if _below(ratio, ends, fit.batch_sizes, resamples) else float(fit.estimate.min_examples),
        "min_examples_interval": interval(fit.resampled.min_examples, confidence),
    }


def _seen(asymptotes: dict[str, Any], fit: Fit | None, confidence: float) -> tuple[bool, bool]:
    """Whether the measured batch sizes show the perfect-scaling part and the saturating part of the curve."""
    if fit is None:
        return False, False
    if asymptotes["min_steps"] is None or asymptotes["min_examples"] is None:
        return asymptotes["min_examples"] is not None, asymptotes["min_steps"] is not None
    ratio, (low, high) = _ratio(fit, confidence)
    if not len(fit.resampled_log_steps):
        low = high = ratio
    return ratio >= fit.batch_sizes[0] and low is not None, ratio <= fit.batch_sizes[-1] and high is not None
