"""How far an answer can be trusted, and what to change if something is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.estimate.fitting.bend import Bend
from analysis.estimate.fitting.misfit import Misfit
from analysis.estimate.fitting.other_forms import OtherForms
from analysis.estimate.fitting.quality import LeaveOneOut
from analysis.estimate.studies import Point, easier_or_equal
from analysis.estimate.study_fits import FarSeed
from analysis.read.groups import Group
from cbs.trial.target import Target


class Verdict(StrEnum):
    """The most serious thing that can be said against an answer; the advice names all of them."""

    NOT_REACHED = "target not reached"
    TOO_FEW_BATCH_SIZES = "too few batch sizes"
    NO_PERFECT_SCALING = "perfect-scaling part not reached"
    NO_SATURATION = "saturating part not reached"
    COARSE_STEPS = "evaluations too rare"
    NOISY_STEPS = "evaluations too noisy"
    IN_WARMUP = "target reached in the warmup"
    AT_GRID_EDGE = "LR optimum at edge of grid"
    OFF_THE_CURVE = "points are off the curve"
    FAR_SEED = "one seed far from the others"
    ONE_DECIDES = "one batch size decides the fit"
    EXPONENT_FROM_PRIOR = "exponent from the prior"
    TOO_FEW_SEEDS = "too few seeds"
    DEPENDS_ON_FORM = "depends on the curve's form"
    TOO_WIDE = "interval too wide"
    OK = "ok"

    @classmethod
    def gravest(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Return the most serious of several verdicts; ``OK`` if all are, or if there is none."""
        return min(verdicts, key=list(cls).index, default=cls.OK)


LACK_OF_FIT = 0.01
"""The residuals of a fit are called too large if their probability is below this."""

ON_THE_CURVE = 0.1
"""If one batch size is left out and the probability of the remaining residuals is above this, the other points are said
to lie on the curve."""

_ROUNDING = 1e-6
"""Tolerance in ``ln B_crit``: without noise an interval is a point, and refits leave it by the error of the
optimizer."""

EXCESS_RMS = 0.03
"""Distance of the points from a fitted curve, in ln S, that the interval still covers; up to it the misfit is only a
remark, above it a verdict."""


MAY_FALL = 0.2
"""Largest acceptable probability that the exponent falls. Up to it, silent errors stay near 5 % or below in the
simulations of ``docs/evidence.md``."""

RISES = 0.99
"""Largest acceptable probability that the exponent rises; most of a rise is covered by the forms with a sharp knee."""

WIDE = 10.0
"""Ratio of the ends of an interval above which it is too wide to choose a batch size."""

FEWEST_SEEDS = 2
"""Below this number of seeds the noise of a run is known only from the distance of the points from the curve."""

GROWTH = 1.5
"""Ratio of the steps at a batch size to those at a smaller one above which noise is an unlikely explanation."""

COARSE = 0.1
"""Fraction by which the steps of a run may be too large because of rare evaluations; on average it is half of that."""

EARLY = 0.1
"""Log steps by which noisy evaluations may cross the target too early; half as much occurs nearly everywhere."""


@dataclass(frozen=True, kw_only=True)
class Doubts:
    """Reasons to doubt a fit.

    Attributes:
        misfit: how far the points lie off the curve; ``None`` if undefined.
        left_out: critical batch sizes with one batch size left out at a time; ``None`` if fewer than 4 reached the
            target.
        ends: interval of the critical batch size of the curve; ``None`` for an open end.
        seen: whether the measured batch sizes show the perfect-scaling part and the saturating part of the curve.
        far_seeds: seeds far from the others; the fit leaves them out, its resamples include both cases.
        exponent_from_prior: whether the exponent is determined less by the data than by its prior.
        forms: critical batch sizes by other forms of the curve; ``None`` if an end of the interval is open.
        bend: how the exponent changes towards large batch sizes; ``None`` if undefined.
    """

    misfit: Misfit | None = None
    left_out: LeaveOneOut | None = None
    ends: tuple[float | None, float | None] = (None, None)
    seen: tuple[bool, bool] = (False, False)
    far_seeds: Sequence[FarSeed] = ()
    exponent_from_prior: bool = False
    forms: OtherForms | None = None
    bend: Bend | None = None

    @property
    def of_the_form(self) -> OtherForms | None:
        """``forms`` unless the points speak against an exponent that changes with the batch size."""
        bent = self.bend is None or self.bend.falls > MAY_FALL or self.bend.rises > RISES
        return self.forms if bent else None

    def decisive(self) -> tuple[float, float] | None:
        """Return the batch size whose omission moves the critical one farthest outside its interval, and where it then
        lies; ``None`` if no omission moves it outside."""
        if self.left_out is None or self.ends == (None, None):
            return None
        low, high = (np.log(end) if end else np.inf * side for end, side in zip(self.ends, (-1, 1), strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.left_out.critical)
            outside = np.where(logs < low, low - logs, np.where(logs > high, logs - high, 0.0))
        worst = int(outside.argmax())
        if not outside[worst] > _ROUNDING:
            return None
        return float(self.left_out.batch_sizes[worst]), float(self.left_out.critical[worst])


def judge(points: Sequence[Point], doubts: Doubts, not_reached: str, easier: str) -> tuple[Verdict, str]:
    """Return verdict and advice; ``not_reached`` and ``easier`` are those of
    :class:`analysis.estimate.estimates.Reading`."""
    if not any(point.reached for point in points):
        return Verdict.NOT_REACHED, not_reached
    findings = [*_findings(points, doubts.seen), *_doubtful(doubts)]
    missed = [point for point in points if not point.reached]
    if missed:
        easier = f"; {easier} was reached at every batch size" if easier else ""
        where = ", ".join(f"{point.batch_size} ({point.status})" for point in missed)
        findings.append((Verdict.OK, f"not reached at batch size {where}{easier}"))
    # verdicts are listed from the most serious to the least
    order = list(Verdict)
    findings.sort(key=lambda finding: order.index(finding[0]))
    return findings[0][0] if findings else Verdict.OK, "; ".join(text for _, text in findings)


def _findings(points: Sequence[Point], seen: tuple[bool, bool]) -> Iterator[tuple[Verdict, str]]:
    reached = [point for point in points if point.reached]
    if len(reached) == 1:
        yield Verdict.TOO_FEW_BATCH_SIZES, "the target was reached at 1 batch size; 3 or more are needed"
    if len(reached) == 2:
        yield (
            Verdict.TOO_FEW_BATCH_SIZES,
            "2 batch sizes determine the curve exactly and leave no interval; add a third",
        )
    sides = (
        (Verdict.NO_PERFECT_SCALING, reached[0], "smallest that reached the target, is past", "smaller"),
        (Verdict.NO_SATURATION, reached[-1], "largest that reached the target, is short of", "larger"),
    )
    for shown, (verdict, end, words, wanted) in zip(seen, sides, strict=True):
        if len(reached) >= 2 and not shown:
            yield verdict, f"batch size {end.batch_size}, the {words} the critical one: add {wanted} ones"
    coarse = [point for point in reached if point.resolution > COARSE]
    if coarse:
        where, most = ", ".join(str(point.batch_size) for point in coarse), max(point.resolution for point in coarse)
        yield (
            Verdict.COARSE_STEPS,
            f"up to {100 * most:.0f} % fewer steps may have been enough at batch size {where}, because nothing was "
            "measured in between: evaluate more often, or choose a harder target",
        )
    early = [point for point in reached if point.lead > EARLY]
    if early:
        where = ", ".join(f"{point.batch_size} ({-100 * np.expm1(-point.lead):.0f} %)" for point in early)
        yield (
            Verdict.NOISY_STEPS,
            "the first evaluation past the target looks like noise, as it comes earlier than the run's trend at batch "
            f"size {where}: validate on more examples, or choose a target at which the metric changes faster",
        )
    warming = [point for point in reached if point.warmup and point.warmup >= (point.steps_to_target or 0.0)]
    if warming:
        where = ", ".join(f"{point.batch_size} ({point.warmup:.4g} steps)" for point in warming)
        yield (
            Verdict.IN_WARMUP,
            f"the warmup of the learning rate lasts longer than the run to the target at batch size {where}, and sets "
            "the steps there: shorten it, or choose a harder target",
        )
    edges = [point for point in reached if point.at_grid_edge]
    if edges:
        where = ", ".join(f"{point.batch_size} ({point.best_lr:g})" for point in edges)
        yield Verdict.AT_GRID_EDGE, f"the best LR is the lowest or highest tried at batch size {where}: extend the grid"
    beyond = [point for point in reached if point.at_axis_edge]
    if beyond:
        names = " and ".join(dict.fromkeys(name for point in beyond for name in point.at_axis_edge))
        where = ", ".join(f"{point.batch_size} ({point.tuned})" for point in beyond)
        yield (
            Verdict.AT_GRID_EDGE,
            f"the best {names} is the lowest or highest tried at batch size {where}: extend the --axis",
        )
    yield from _growing(reached)
    if max(point.seeds for point in reached) < FEWEST_SEEDS:
        yield Verdict.TOO_FEW_SEEDS, "one seed: run 3 or more before comparing optimizers"
    partly = [point for point in reached if point.seeds_reached < point.seeds]
    if partly:
        where = ", ".join(f"{point.batch_size} ({point.seeds_reached} of {point.seeds})" for point in partly)
        yield Verdict.OK, f"only some seeds reached the target at the best LR of batch size {where}"


def _growing(reached: Sequence[Point]) -> Iterator[tuple[Verdict, str]]:
    """Find steps that grow with the batch size, which no curve does; medians keep one far seed of three from doing
    it."""
    steps = np.array([np.median(point.steps_per_seed or [point.steps_to_target or np.nan]) for point in reached])
    growth = steps / np.minimum.accumulate(steps)
    worst = int(growth.argmax())
    if growth[worst] > GROWTH:
        least = int(steps[:worst].argmin())
        yield (
            Verdict.OFF_THE_CURVE,
            f"the steps grow by a factor {growth[worst]:.3g} from batch size {reached[least].batch_size} to "
            f"{reached[worst].batch_size}: are they optimizer steps, and were learning rate and budget right there?",
        )


def _off_the_curve(doubts: Doubts, misfit: Misfit) -> str:
    text = f"the points lie {100 * misfit.excess_rms:.2g} % (rms) off the curve, beyond what seeds explain"
    text += f" (p = {misfit.probability:.1g})"
    if doubts.left_out is None:
        return text
    # if a refit leaves no residual degrees of freedom its misfit is undefined (NaN)
    probabilities = np.nan_to_num(doubts.left_out.misfit)
    best = int(probabilities.argmax())
    size, rest = doubts.left_out.batch_sizes[best], probabilities[best]
    if rest > ON_THE_CURVE:
        text += f", but not without batch size {size:g} (p = {rest:.1g}): look at its trials"
    return text


def _doubtful(doubts: Doubts) -> Iterator[tuple[Verdict, str]]:
    if doubts.misfit is not None and doubts.misfit.probability < LACK_OF_FIT:
        large = doubts.misfit.excess_rms > EXCESS_RMS
        yield Verdict.OFF_THE_CURVE if large else Verdict.OK, _off_the_curve(doubts, doubts.misfit)
    if doubts.far_seeds:
        named = "; ".join(
            f"seed {seed} at batch size {size} took {factor:.2g} times the steps of the other seeds"
            for size, seed, factor in doubts.far_seeds
        )
        yield Verdict.FAR_SEED, f"{named}: look at the run; the estimate leaves it out, the interval allows for both"
    decisive = doubts.decisive()
    if decisive is not None:
        size, value = decisive
        where = f"{value:.3g}" if 0 < value < np.inf else "not bounded"
        yield (
            Verdict.ONE_DECIDES,
            f"without batch size {size:g} the critical one is {where}, outside the interval: run more seeds there, and "
            "neighbouring batch sizes",
        )
    yield from _of_the_form(doubts)
    low, high = doubts.ends
    if low is not None and high is not None and high / low >= WIDE:
        yield (
            Verdict.TOO_WIDE,
            f"the interval of the critical batch size spans a factor of {high / low:.2g}; four times as many seeds "
            f"make that about {math.sqrt(high / low):.2g}, and more batch sizes on both sides of it also help",
        )


def _of_the_form(doubts: Doubts) -> Iterator[tuple[Verdict, str]]:
    if doubts.exponent_from_prior:
        yield (
            Verdict.EXPONENT_FROM_PRIOR,
            "these batch sizes determine the exponent less than its prior (near 1) does, and B_crit depends on "
            "it: add batch sizes between them and beyond both ends",
        )
    if doubts.of_the_form is not None:
        text = _of_the_exponent(doubts.bend)
        alternatives = "; ".join(f"if {words}, B_crit is {value:.3g}" for words, value in doubts.of_the_form.named)
        deciding = doubts.of_the_form.deciding
        where = f"batch size{'s'[: len(deciding) - 1]} {' and '.join(map(str, deciding))}" if deciding else "more seeds"
        yield (
            Verdict.DEPENDS_ON_FORM,
            f"{text}{': ' if alternatives else ''}{alternatives}; {where} would determine it best",
        )


def _of_the_exponent(bend: Bend | None) -> str:
    if bend is None:
        return "the points do not determine the form of the curve"
    small, large = f"{bend.small:.2g}", f"{bend.large:.2g}"
    change = f"from {small} at small to {large} at large batch sizes"
    fitted = f"; fitted, it goes {change}" if small != large else ""
    if bend.rises > RISES:
        return f"the exponent rises {change}: the knee is sharper than that of a power law"
    return (
        f"the exponent may fall towards large batch sizes (probability {bend.falls:.2g}{fitted}), "
        "and B_crit lie above the interval"
    )


def not_reached(group: Group, target: Target, easier: Target | None) -> str:
    """Return advice for a target that no batch size reached, given an ``easier`` one reached at every batch size."""
    if group.stops_at_target and group.beside:
        own = ", ".join(map(str, group.further_targets))
        return (
            f"the trials stopped at the sweep's own target, {own}, some of them too early for this one: analyze with "
            f"an easier one, or run a sweep with --set target.{target.metric}={target.value:g}"
        )
    if group.stops_at_target and not easier_or_equal(target, group.target):
        return f"the trials stopped at the sweep's own target, {group.target}: run a sweep with the target {target}"
    if easier is None:
        return "at some batch size no trial reached its first evaluation: see the messages of the failed trials"
    return (
        f"analyze with an easier target ({easier} was reached at every batch size), or run with more steps or other "
        "learning rates"
    )
