"""From the studies of one optimizer to its critical batch sizes: the fit, every definition of it, and the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.arrays import UNKNOWN, Array, Interval, Quantity
from analysis.config import AnalysisConfig
from analysis.estimate.curves import Curve
from analysis.estimate.definitions import Definition, Sample, chosen
from analysis.estimate.diagnosis import Doubts, FarRun, Verdict, judge
from analysis.estimate.fitting import Fit, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import Belief
from analysis.estimate.fitting.least_squares import EXPONENTS
from analysis.estimate.fitting.quality import leave_one_out, misfit
from analysis.estimate.studies import Point, Study, point
from analysis.estimate.study_fits import FarSeed, fit_studies, sample
from analysis.plain import plain, shown
from cbs.store import finite_or_none
from cbs.target import Target

_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Critical(Quantity):
    """A critical batch size by one definition, in examples; no value where the data do not bound it, or the definition
    does not apply.

    Attributes:
        definition: its name.
        options: the options it was evaluated with.
        remark: what has to be said about it; empty if nothing.
        parameters: of a law across the targets that were read; empty for a definition without one.
        resampled: its value on every resample, shape ``[R]``; 0, infinity or NaN as :class:`Definition` says.
    """

    definition: str
    options: dict[str, Any]
    remark: str = ""
    parameters: dict[str, Quantity] = field(default_factory=dict)
    resampled: Array = field(default_factory=lambda: np.empty(0), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values without the resamples, and without parameters where there are none."""
        found = {key: value for key, value in shown(self).items() if key != "parameters" or value}
        return {"critical_batch_size": found.pop("value"), **found}


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
        return _pairs(self, "critical_batch_size", "min_steps", "min_examples")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the studies of one optimizer say at one target.

    Attributes:
        studies: steps to target of every learning rate and seed, per batch size.
        points: one per batch size.
        fit: the curve through the points; ``None`` when the target was reached at fewer than two batch sizes.
        definitions: the critical batch size by every definition, by its name.
        min_steps: ``S_min``, optimizer updates.
        exponent: of the curve.
        examples_at_critical: examples to target at the critical batch size of the curve, ``2 S_min B_crit``.
        hyperbola: the same if the exponent were 1; ``None`` without a fit.
        verdict: see :class:`Verdict`.
        advice: what to change; empty when nothing is missing.
        doubts: what may speak against the fit.
    """

    studies: tuple[Study, ...] = field(repr=False)
    points: tuple[Point, ...]
    fit: Fit | None = field(repr=False)
    definitions: dict[str, Critical]
    min_steps: Quantity = UNKNOWN
    exponent: Quantity = UNKNOWN
    examples_at_critical: Quantity = UNKNOWN
    hyperbola: Hyperbola | None = None
    verdict: Verdict
    advice: str
    doubts: Doubts = field(default=Doubts(), repr=False)

    @property
    def leave_one_out(self) -> Interval | None:
        """Lowest and highest critical batch size of refits without one batch size, in examples; an end that the rest
        leaves open is ``None``. ``None`` below 4 batch sizes that reached the target."""
        return None if self.doubts.left_out is None else self.doubts.left_out.range

    def to_json(self) -> dict[str, Any]:
        """The curve and what says whether it can be believed, as plain JSON values."""
        return {
            **_pairs(self, "min_steps", "exponent", "examples_at_critical"),
            "hyperbola": plain(self.hyperbola),
            "misfit": plain(self.doubts.misfit),
            "leave_one_out": plain(self.leave_one_out),
            "far_seeds": [far._asdict() for far in self.doubts.far_seeds],
        }


def _pairs(of: Any, *names: str) -> dict[str, Any]:
    return {key: value for name in names for key, value in getattr(of, name).named(name).items()}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one optimizer's curve at one target is estimated from.

    Attributes:
        target: which.
        studies: by increasing batch size.
        not_reached: advice for when no batch size reached the target.
        easier: an easier target that was reached at every batch size; empty where there is none.
    """

    target: Target
    studies: Sequence[Study]
    not_reached: str = ""
    easier: str = ""


def known_value(target: Target) -> float | None:
    """Of the metric; ``None`` for the target of a table that does not tell it."""
    return target.value if getattr(target, "known", True) else None


def estimates(readings: Sequence[Reading], config: AnalysisConfig, believed: Sequence[Belief]) -> list[Estimate]:
    """One estimate per target of one optimizer.

    Args:
        readings: one per target.
        config: how the numbers are made; all targets draw with the same seed, so that they may be compared resample by
            resample.
        believed: about the exponent at every target, see :func:`analysis.estimate.study_fits.beliefs`.
    """
    found = [fit_studies(reading.studies, config, belief) for reading, belief in zip(readings, believed, strict=True)]
    pairs = zip(found, readings, strict=True)
    usable = [(fit, known_value(reading.target)) for (fit, *_), reading in pairs if fit is not None]
    measured = [sample(fit, target) for fit, target in usable]
    resampled = [sample(fit, target, resampled=True) for fit, target in usable]
    wanted = chosen(config)
    laws = {name: _parameters(each, measured, resampled, config.confidence) for name, each in wanted.items()}
    made, at = [], -1
    for reading, (fit, far, used) in zip(readings, found, strict=True):
        at += fit is not None
        definitions = {
            name: Critical(
                definition=name,
                options=dataclasses.asdict(definition),  # type: ignore[call-overload]
                parameters=laws[name],
                **({} if fit is None else _critical(definition, measured, resampled, at, config.confidence)),
            )
            for name, definition in wanted.items()
        }
        points = tuple(point(study) for study in reading.studies)
        doubts = Doubts() if fit is None else _doubts(reading.studies, fit, far, used, config.confidence)
        verdict, advice = judge(points, doubts, reading.not_reached, reading.easier)
        made.append(
            Estimate(
                studies=tuple(reading.studies),
                points=points,
                fit=fit,
                definitions=definitions,
                verdict=verdict,
                advice=advice,
                doubts=doubts,
                **({} if fit is None else _of_curve(fit, config.confidence)),
            )
        )
    return made


def _doubts(
    studies: Sequence[Study], fit: Fit, far: Sequence[FarSeed], used: Sequence[Trials], confidence: float
) -> Doubts:
    ends = interval(fit.resampled.critical, confidence)
    # the measured batch sizes show a part of the curve where the critical one lies beyond it, at both ends if there are
    critical, exact = float(fit.estimate.critical), not len(fit.resampled_log_steps)
    low, high = (critical, critical) if exact else ends
    return Doubts(
        misfit=misfit(fit, used),
        left_out=leave_one_out(fit, used),
        ends=ends,
        seen=(
            critical >= fit.batch_sizes[0] and bool(low),
            critical <= fit.batch_sizes[-1] and high is not None and high < math.inf,
        ),
        far_seeds=[
            FarRun(studies[seed.place].batch_size, int(studies[seed.place].seeds[seed.column]), seed.factor)
            for seed in far
        ],
    )


def _of_curve(fit: Fit, confidence: float) -> dict[str, Any]:
    def asymptote(curve: Curve, resampled: Curve, name: str) -> Quantity:
        """``None`` where it belongs to a part of the curve that the data do not show."""
        ends, values = interval(resampled.critical, confidence), resampled.critical
        below, above = _beyond(float(curve.critical), ends, fit.batch_sizes, len(values))
        unseen = {"min_steps": above, "min_examples": below}.get(name, below or above)
        value = None if unseen else float(getattr(curve, name))
        return Quantity(value, interval(getattr(resampled, name), confidence))

    own, other = (fit.estimate, fit.resampled), (fit.hyperbola, fit.resampled_hyperbola)
    # open where it runs to an end of what is looked for
    exponent, low, high = (
        end if end is not None and EXPONENTS[0] * (1 + _ROUNDING) < end < EXPONENTS[1] * (1 - _ROUNDING) else None
        for end in (float(fit.estimate.exponent), *interval(fit.resampled.exponent, confidence))
    )
    return {
        "min_steps": asymptote(*own, "min_steps"),
        "exponent": Quantity(exponent, (low, high)),
        "examples_at_critical": asymptote(*own, "examples_at_critical"),
        "hyperbola": Hyperbola(
            critical_batch_size=asymptote(*other, "critical"),
            min_steps=asymptote(*other, "min_steps"),
            min_examples=asymptote(*other, "min_examples"),
        ),
    }


def _critical(
    definition: Definition, measured: Sequence[Sample], resampled: Sequence[Sample], at: int, confidence: float
) -> dict[str, Any]:
    value, values = float(definition(measured, at)[0]), definition(resampled, at)
    ends = interval(values, confidence)
    return {
        "value": None if any(_beyond(value, ends, measured[at].batch_sizes, len(values))) else finite_or_none(value),
        "interval": ends,
        "remark": definition.remark(measured, at),
        "resampled": values,
    }


def _parameters(
    definition: Definition, measured: Sequence[Sample], resampled: Sequence[Sample], confidence: float
) -> dict[str, Quantity]:
    """By name; without an interval where there are too few targets for one."""
    values, drawn = definition.parameters(measured), definition.parameters(resampled)
    return {
        name: Quantity(finite_or_none(float(value[0])), interval(drawn.get(name, np.empty(0)), confidence))
        for name, value in values.items()
    }


def _beyond(value: float, ends: Interval, batch_sizes: Array, resamples: int) -> tuple[bool, bool]:
    """Whether a value stands for nothing but "below", or "above", the measured batch sizes."""
    return (
        value <= 0 or (resamples > 0 and ends[0] is None and value < batch_sizes[0]),
        value == math.inf or (resamples > 0 and ends[1] is None and value > batch_sizes[-1]),
    )
