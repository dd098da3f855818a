"""From the studies of one optimizer to its critical batch sizes: the fit, every definition of it, and the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from analysis.arrays import Array
from analysis.config import AnalysisConfig
from analysis.estimate.curves import Curve
from analysis.estimate.definitions import Definition, Sample, chosen
from analysis.estimate.diagnosis import Doubts, Verdict, judge
from analysis.estimate.fitting import FEWEST_FREE, Fit, fit_curve, free_exponent, interval
from analysis.estimate.fitting.exponent import ALONE, Belief, pooled
from analysis.estimate.fitting.least_squares import EXPONENTS
from analysis.estimate.fitting.quality import LeaveOneOut, Misfit, leave_one_out, misfit
from analysis.estimate.fitting.seeds import FarSeed, far_seeds
from analysis.estimate.fitting.tables import Table
from analysis.estimate.studies import Point, Study, point
from cbs.store import finite_or_none

Interval = tuple[float | None, float | None]
_OPEN: Interval = (None, None)
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A fitted number.

    Attributes:
        value: ``None`` where the data do not show it.
        interval: of ``value``; an open end is ``None``.
    """

    value: float | None = None
    interval: Interval = _OPEN


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
class Hyperbola:
    """What the same trials say if the curve is taken for the hyperbola (exponent 1).

    Attributes:
        critical_batch_size: ``E_min / S_min`` in examples.
        min_steps: ``S_min``, optimizer updates.
        min_examples: ``E_min``.
    """

    critical_batch_size: Quantity
    min_steps: Quantity
    min_examples: Quantity

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return _to_json(self)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the studies of one optimizer say at one target.

    Attributes:
        studies: steps to target of every learning rate and seed, per batch size.
        points: one per batch size.
        fit: the curve through the points; ``None`` when the target was reached at fewer than two batch sizes.
        critical: by name of the definition.
        min_steps: ``S_min``, optimizer updates.
        exponent: of the curve.
        examples_at_critical: examples to target at the critical batch size of the curve, ``2 S_min B_crit``.
        hyperbola: the same if the exponent were 1; ``None`` without a fit.
        verdict: see :class:`Verdict`.
        advice: what to change; empty when nothing is missing.
        misfit: how far the points lie off the curve; ``None`` where undefined.
        left_out: the critical batch size without one batch size at a time; ``None`` below 4 that reached the target.
        far_seeds: seeds far from their siblings; the fit leaves them out, its resamples hold both.
        seen: whether the measured batch sizes show the perfect-scaling part and the saturating part of the curve.
    """

    studies: tuple[Study, ...] = field(repr=False)
    points: tuple[Point, ...]
    fit: Fit | None = field(repr=False)
    critical: dict[str, Critical]
    min_steps: Quantity
    exponent: Quantity
    examples_at_critical: Quantity
    hyperbola: Hyperbola | None
    verdict: Verdict
    advice: str
    misfit: Misfit | None = None
    left_out: LeaveOneOut | None = field(default=None, repr=False)
    far_seeds: tuple[FarSeed, ...] = ()
    seen: tuple[bool, bool] = (False, False)

    @property
    def leave_one_out(self) -> Interval | None:
        """Lowest and highest critical batch size of refits without one batch size, in examples; an end that the rest
        leaves open is ``None``. ``None`` where undefined."""
        return None if self.left_out is None else self.left_out.range

    def to_json(self) -> dict[str, Any]:
        """The curve and what says whether it can be believed, as plain JSON values."""
        return {
            **_to_json(self, "min_steps", "exponent", "examples_at_critical"),
            "hyperbola": None if self.hyperbola is None else self.hyperbola.to_json(),
            "misfit": None if self.misfit is None else dataclasses.asdict(self.misfit),
            "leave_one_out": None if self.leave_one_out is None else list(self.leave_one_out),
            "far_seeds": [
                {
                    "batch_size": self.studies[far.place].batch_size,
                    "seed": int(self.studies[far.place].seeds[far.column]),
                    "factor": far.factor,
                }
                for far in self.far_seeds
            ],
        }


def _to_json(of: Any, *names: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names or [each.name for each in dataclasses.fields(of)]:
        quantity = getattr(of, name)
        found |= {name: quantity.value, f"{name}_interval": list(quantity.interval)}
    return found


def tables(studies: Sequence[Study]) -> list[Table]:
    """The trials of every study as :func:`analysis.estimate.fitting.fit_curve` takes them."""
    return [Table(study.steps, study.bound, study.ran) for study in studies]


def fit_studies(
    studies: Sequence[Study], config: AnalysisConfig, belief: Belief = ALONE
) -> tuple[Fit | None, tuple[FarSeed, ...]]:
    """The curve through the studies, ``None`` when fewer than two reached the target; seeds far from their siblings.

    Seeds, and whole studies, that ran without reaching it enter as lower bounds. Far seeds are left out of the curve;
    every second resample is one with them, so the interval holds either way, unless with them it has no ends.
    """
    if sum(study.winner is not None for study in studies) < 2:
        return None, ()
    whole = tables(studies)
    sizes = [study.batch_size for study in studies]

    def fitted(tried: Sequence[Table]) -> Fit:
        return fit_curve(
            sizes,
            tried,
            belief=belief,
            confidence=config.confidence,
            resamples=config.resamples,
            seed=config.seed,
        )

    far = far_seeds(whole)
    if not far:
        return fitted(whole), ()
    rest = list(whole)
    for seed in far:
        rest[seed.place] = rest[seed.place].without(seed.column)
    fit, other = fitted(rest), fitted(whole)
    if None in interval(other.resampled.critical, config.confidence):
        return fit, tuple(far)
    return _alternating(fit, other), tuple(far)


def _alternating(fit: Fit, other: Fit) -> Fit:
    """``fit`` with every second resample from ``other``."""

    def mixed(mine: Array, its: Array) -> Array:
        turn = (np.arange(len(mine)) % 2 == 0).reshape(-1, *[1] * (mine.ndim - 1))
        return np.where(turn, mine, its)

    def curves(mine: Curve, its: Curve) -> Curve:
        return Curve(*(mixed(getattr(mine, each.name), getattr(its, each.name)) for each in dataclasses.fields(mine)))

    return replace(
        fit,
        resampled_log_steps=mixed(fit.resampled_log_steps, other.resampled_log_steps),
        resampled=curves(fit.resampled, other.resampled),
        resampled_hyperbola=curves(fit.resampled_hyperbola, other.resampled_hyperbola),
    )


def beliefs(curves: Sequence[Sequence[Study]], scopes: Sequence[Hashable], config: AnalysisConfig) -> list[Belief]:
    """About the exponent of every curve, from the others of its scope, see
    :mod:`analysis.estimate.fitting.exponent`."""
    free = [
        free_exponent([study.batch_size for study in studies], tables(studies), confidence=config.confidence)
        if sum(study.winner is not None for study in studies) >= FEWEST_FREE
        else None
        for studies in curves
    ]
    found = [ALONE] * len(free)
    for scope in set(scopes):
        members = [index for index, other in enumerate(scopes) if other == scope]
        for index, belief in zip(members, pooled([free[index] for index in members]), strict=True):
            found[index] = belief
    return found


def estimates(
    curves: Sequence[Sequence[Study]],
    config: AnalysisConfig,
    *,
    targets: Sequence[float | None],
    not_reached: Sequence[str] = (),
    easier: Sequence[str] = (),
    believed: Sequence[Belief] = (),
) -> list[Estimate]:
    """One estimate per target of one optimizer.

    Args:
        curves: the studies at every target.
        config: how the numbers are made; all targets draw with the same seed, so that they may be compared resample by
            resample.
        targets: value of the metric at every target; ``None`` where it is not known.
        not_reached: advice at every target for when no batch size reached it.
        easier: at every target, which easier one was reached at every batch size; empty where there is none.
        believed: about the exponent at every target, see :func:`beliefs`.
    """
    found = [
        fit_studies(studies, config, belief)
        for studies, belief in zip(curves, believed or [ALONE] * len(curves), strict=True)
    ]
    fits = [fit for fit, _ in found]
    usable = [index for index, fit in enumerate(fits) if fit is not None]
    measured = [sample(fits[index], targets[index]) for index in usable]
    resampled = [sample(fits[index], targets[index], resampled=True) for index in usable]
    made = []
    for index, (studies, (fit, far)) in enumerate(zip(curves, found, strict=True)):
        at = usable.index(index) if fit is not None else None
        critical = {
            name: _critical(name, definition, measured, resampled, at, config.confidence)
            for name, definition in chosen(config).items()
        }
        made.append(
            _estimate(
                studies,
                fit,
                far,
                critical,
                config,
                not_reached[index] if not_reached else "",
                easier[index] if easier else "",
            )
        )
    return made


def _estimate(
    studies: Sequence[Study],
    fit: Fit | None,
    far: tuple[FarSeed, ...],
    critical: dict[str, Critical],
    config: AnalysisConfig,
    not_reached: str,
    easier: str,
) -> Estimate:
    points = tuple(point(study) for study in studies)
    none = Quantity()
    if fit is None:
        verdict, advice = judge(points, Doubts(), not_reached, easier)
        return Estimate(
            studies=tuple(studies),
            points=points,
            fit=None,
            critical=critical,
            min_steps=none,
            exponent=none,
            examples_at_critical=none,
            hyperbola=None,
            verdict=verdict,
            advice=advice,
        )
    used = tables(studies)
    for seed in far:
        used[seed.place] = used[seed.place].without(seed.column)
    ends = interval(fit.resampled.critical, config.confidence)
    named = [(studies[seed.place].batch_size, int(studies[seed.place].seeds[seed.column]), seed.factor) for seed in far]
    doubts = Doubts(
        misfit=misfit(fit, used), left_out=leave_one_out(fit, used), ends=ends, seen=_seen(fit, ends), far_seeds=named
    )
    verdict, advice = judge(points, doubts, not_reached, easier)
    return Estimate(
        studies=tuple(studies),
        points=points,
        fit=fit,
        critical=critical,
        min_steps=_asymptote(fit, fit.estimate, fit.resampled, "min_steps", config.confidence),
        exponent=_exponent(fit, config.confidence),
        examples_at_critical=_asymptote(fit, fit.estimate, fit.resampled, "examples_at_critical", config.confidence),
        hyperbola=Hyperbola(
            **{
                name: _asymptote(fit, fit.hyperbola, fit.resampled_hyperbola, attribute, config.confidence)
                for name, attribute in (
                    ("critical_batch_size", "critical"),
                    ("min_steps", "min_steps"),
                    ("min_examples", "min_examples"),
                )
            }
        ),
        verdict=verdict,
        advice=advice,
        misfit=doubts.misfit,
        left_out=doubts.left_out,
        far_seeds=far,
        seen=doubts.seen,
    )


def sample(fit: Fit | None, target: float | None, *, resampled: bool = False) -> Sample:
    """What a definition sees of a fit: the measured curve, or its resamples."""
    if fit is None:
        raise ValueError("a sample needs a fit")
    if not resampled:
        return Sample(fit.batch_sizes, fit.log_steps[None], fit.estimate.one(), fit.hyperbola.one(), target)
    return Sample(fit.batch_sizes, fit.measured_resamples, fit.resampled, fit.resampled_hyperbola, target)


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


def _asymptote(fit: Fit, curve: Curve, resampled: Curve, name: str, confidence: float) -> Quantity:
    """A number of a curve; ``None`` where it belongs to a part of the curve that the data do not show."""
    ends, resamples = interval(resampled.critical, confidence), len(resampled.critical)
    critical = float(curve.critical)
    unseen = {
        "min_steps": _above(critical, ends, fit.batch_sizes, resamples),
        "min_examples": _below(critical, ends, fit.batch_sizes, resamples),
    }.get(name, _beyond(critical, ends, fit.batch_sizes, resamples))
    value = float(getattr(curve, name))
    return Quantity(value=None if unseen else value, interval=interval(getattr(resampled, name), confidence))


def _exponent(fit: Fit, confidence: float) -> Quantity:
    """Open where it runs to an end of what is looked for."""
    value = float(fit.estimate.exponent)
    low, high = (
        end if end is not None and _inside(end) else None for end in interval(fit.resampled.exponent, confidence)
    )
    return Quantity(value=value if _inside(value) else None, interval=(low, high))


def _inside(exponent: float) -> bool:
    low, high = EXPONENTS
    return low * (1 + _ROUNDING) < exponent < high * (1 - _ROUNDING)


def _seen(fit: Fit, ends: Interval) -> tuple[bool, bool]:
    """Whether the measured batch sizes show the perfect-scaling part and the saturating part of the curve."""
    critical, exact = float(fit.estimate.critical), not len(fit.resampled_log_steps)
    low, high = (critical, critical) if exact else ends
    return (
        critical >= fit.batch_sizes[0] and bool(low),
        critical <= fit.batch_sizes[-1] and high is not None and high < math.inf,
    )
