"""How far an answer can be trusted, and what to change if something is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.estimate.draws import Break
from analysis.estimate.studies import Point, easier_or_equal
from analysis.estimate.study_draws import Drawn, FarSeed
from analysis.formatting import number
from analysis.quantities import Interval, pooled
from analysis.read.groups import Group
from cbs.trial.store import finite_or_none
from cbs.trial.target import Target


class Verdict(StrEnum):
    """The most serious thing that can be said against an answer, whatever the question; the advice says what to do."""

    NOT_REACHED = "target not reached"
    UNTOLD = "cannot be told"
    NONE_LOST = "no branch lost"
    ALL_LOST = "every larger branch lost"
    COARSE_STEPS = "evaluations too rare"
    TOO_FEW_BATCH_SIZES = "too few batch sizes"
    BELOW = "below the measured batch sizes"
    ABOVE = "above the measured batch sizes"
    NOISY_STEPS = "evaluations too noisy"
    IN_WARMUP = "the warmup decides"
    AT_GRID_EDGE = "LR optimum at edge of grid"
    NEAR_DIVERGENCE = "near divergence"
    SHORT_WINDOW = "window too short"
    SOME_FAILED = "some seeds failed"
    OFF_THE_CURVE = "points are off the curve"
    FAR_SEED = "one seed far from the others"
    PRIOR_DECIDES = "the prior decides"
    TOO_FEW_SEEDS = "too few seeds"
    COARSE_RATES = "learning rates too coarse"
    NOT_TUNED = "learning rate not tuned"
    TOO_WIDE = "interval too wide"
    EXTRAPOLATED = "extrapolated"
    OK = "ok"

    @classmethod
    def gravest(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Return the most serious of several verdicts; ``OK`` if all are, or if there is none."""
        return min(verdicts, key=list(cls).index, default=cls.OK)


SUDDEN = 0.5  # A jump or kink of a greater probability is a verdict
MOVES = 0.25  # Share of its interval by which an answer may move with the priors, or with the warmup; by hand
NOTABLE = 0.05  # Moves of ln B_crit up to this never matter
WIDE = 10.0  # Ratio of the ends of an interval above which it is too wide to choose a batch size; by hand

# Below this number of seeds the noise of a run is known only from the distance of the points from the curve
FEWEST_SEEDS = 2

# Ratio of the steps at a batch size to those at a smaller one above which noise is an unlikely explanation
GROWTH = 1.5

# Standard errors by which the steps fall faster than the batch size grows, and logarithm by which the best learning
# rate rises faster than it: both together no scaling explains.
STEEP, FASTER = 2.0, math.log(1.4)

# Noise of one run's ln steps that is usual, and the degrees of freedom for which that counts
_USUAL_NOISE, _USUAL_FREEDOM = 0.05, 3.0

# Fraction by which the steps of a run may be too large because of rare evaluations; on average it is half of that
COARSE = 0.1

# Log steps by which noisy evaluations may cross the target too early; half as much occurs nearly everywhere
EARLY = 0.1


@dataclass(frozen=True, kw_only=True)
class Doubts:
    """Reasons to doubt an answer.

    Attributes:
        beyond: whether the least product may lie below the smallest, and above the largest batch size that reached the
            target.
        far_seeds: seeds far from the others; every second draw leaves them out.
        sudden: the likeliest sudden change of the curve.
        width: ln of the ratio of the ends of the interval; infinite if one is open.
        moved_by_prior, moved_by_warmup: how far ln of the headline moves if the priors are half or twice as wide, and
            if half of the warmup does not count.
        extrapolated: name of the chosen definition if it lies at an asymptote; else empty.
    """

    beyond: tuple[bool, bool] = (True, True)
    far_seeds: Sequence[FarSeed] = ()
    sudden: Break | None = None
    width: float = math.inf
    moved_by_prior: float = 0.0
    moved_by_warmup: float = 0.0
    extrapolated: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "sudden_change": None if self.sudden is None else self.sudden._asdict(),
            "far_seeds": [far._asdict() for far in self.far_seeds],
            "moved_by_prior": finite_or_none(self.moved_by_prior),
            "moved_by_warmup": finite_or_none(self.moved_by_warmup),
        }


def doubts_of(found: Drawn, ends: Interval, extrapolated: str = "") -> Doubts:
    """Return the doubts about draws, given the interval of their least product, and the name of the chosen definition
    if it is extrapolated."""
    low, high = ends
    return Doubts(
        beyond=(low is None, high is None),
        far_seeds=found.far,
        sudden=found.draws.sudden,
        width=math.log(high / low) if low and high else math.inf,
        moved_by_prior=found.moved_by_prior,
        moved_by_warmup=found.moved_by_warmup,
        extrapolated=extrapolated,
    )


def judge(
    points: Sequence[Point], doubts: Doubts, not_reached: str, easier: Target | None, *, seeded: bool = True
) -> tuple[Verdict, str]:
    """Return verdict and advice; ``not_reached`` and ``easier`` are those of
    :class:`analysis.estimate.estimates.Reading`, ``seeded`` is that of the group."""
    if not any(point.reached or point.bounded for point in points):
        return Verdict.NOT_REACHED, not_reached
    findings = [*_findings(points, doubts, seeded), *_doubtful(doubts)]
    missed = [point for point in points if not (point.reached or point.bounded)]
    if missed:
        instead = f", where {easier} was" if easier else ""
        where = ", ".join(f"{point.batch_size} ({point.status})" for point in missed)
        findings.append((Verdict.OK, f"not reached at batch size {where}{instead}"))
    # verdicts are listed from the most serious to the least
    order = list(Verdict)
    findings.sort(key=lambda finding: order.index(finding[0]))
    return findings[0][0] if findings else Verdict.OK, "; ".join(text for _, text in findings)


def _findings(points: Sequence[Point], doubts: Doubts, seeded: bool) -> Iterator[tuple[Verdict, str]]:
    reached = [point for point in points if point.reached]
    bounded = [point for point in points if point.bounded]
    if bounded:
        where = ", ".join(f"{point.batch_size} ({number(point.steps_upper_bound)})" for point in bounded)
        yield (
            Verdict.COARSE_STEPS,
            "runs were past the target when first evaluated, so that their steps are only known to be at most those at "
            f"batch size {where}: evaluate earlier, or choose a harder target",
        )
    if not reached:
        return
    if len(reached) == 1:
        known = "the steps to the target are known" if bounded else "the target was reached"
        yield Verdict.TOO_FEW_BATCH_SIZES, f"{known} at 1 batch size of the 3 or more that are needed: add some"
    if len(reached) == 2 and not bounded:
        yield Verdict.TOO_FEW_BATCH_SIZES, "2 batch sizes do not show how a curve bends: add a third"
    sides = (
        (Verdict.BELOW, reached[0], "below", "smallest", "smaller"),
        (Verdict.ABOVE, reached[-1], "above", "largest", "larger"),
    )
    growing = list(_growing(reached))
    yield from growing
    # steps that grow may be no updates at all: other batch sizes would not mend that
    for open_end, (verdict, end, side, words, wanted) in () if growing else zip(doubts.beyond, sides, strict=True):
        ran = bounded and bounded[0 if side == "below" else -1].batch_size
        farther = ran and (ran < end.batch_size if side == "below" else ran > end.batch_size)
        if len(reached) >= 2 and open_end and not farther:
            tried = [point for point in points if not (point.reached or point.bounded)]
            missed = [each.batch_size for each in tried if (each.batch_size < end.batch_size) == (side == "below")]
            where = ", ".join(map(str, missed))
            what = f"let {where} get there, by more steps or an easier target" if missed else f"add {wanted} ones"
            yield (
                verdict,
                f"steps x examples may be least {side} batch size {end.batch_size}, the {words} that reached the "
                f"target: {what}",
            )
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
    elif doubts.moved_by_warmup > max(MOVES * doubts.width, NOTABLE):
        yield (
            Verdict.IN_WARMUP,
            f"without half of their warmup the runs give a B_crit that {_factor(doubts.moved_by_warmup)}: shorten the "
            "warmup, or choose a harder target",
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
    yield from _too_steep(reached)
    if max(point.seeds for point in reached) < FEWEST_SEEDS:
        more = "run 3 or more" if seeded else "the command has no {seed}, let it take one"
        yield Verdict.TOO_FEW_SEEDS, f"one seed: {more} before comparing optimizers"
    partly = [point for point in reached if point.seeds_reached < point.seeds]
    if partly:
        where = ", ".join(f"{point.batch_size} ({point.seeds_reached} of {point.seeds})" for point in partly)
        yield Verdict.OK, f"only some seeds ran to the target at the best LR of batch size {where}"


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


def _too_steep(reached: Sequence[Point]) -> Iterator[tuple[Verdict, str]]:
    """Find steps that fall, and learning rates that rise, by more than the factor of the batch size: the smaller size
    has run at a poor learning rate."""
    logs = [np.log(point.steps_per_seed or [point.steps_to_target or np.nan]) for point in reached]
    squares, freedom = pooled(logs)
    noise = math.sqrt((_USUAL_FREEDOM * _USUAL_NOISE**2 + squares) / (_USUAL_FREEDOM + freedom))
    for (small, before), (large, after) in pairwise(zip(reached, logs, strict=True)):
        factor = math.log(large.batch_size / small.batch_size)
        fall = float(before.mean() - after.mean())
        rise = math.log((large.best_lr or 1.0) / (small.best_lr or 1.0))
        error = noise * math.sqrt(1 / len(before) + 1 / len(after))
        if fall - factor > STEEP * error and rise - factor > FASTER and small.best_lr and large.best_lr:
            yield (
                Verdict.OFF_THE_CURVE,
                f"the steps fall by a factor {math.exp(fall):.3g} from batch size {small.batch_size} to "
                f"{large.batch_size}, more than perfect scaling: the learning rate at {small.batch_size} "
                f"({small.best_lr:g}) looks too low: try {math.sqrt(small.best_lr * large.best_lr):.3g} there",
            )


def _factor(moved: float) -> str:
    return f"differs by a factor of {math.exp(moved):.2g}" if math.isfinite(moved) else "lies beyond the measured sizes"


def _doubtful(doubts: Doubts) -> Iterator[tuple[Verdict, str]]:
    if doubts.sudden is not None and doubts.sudden.chance > SUDDEN:
        kind, below, above, _ = doubts.sudden
        middle = round(math.sqrt(below * above))
        text = (
            f"the steps change their course at once between batch sizes {below:g} and {above:g}, and B_crit may lie at "
            "that kink: add batch sizes between them"
            if kind == "kink"
            else f"the steps jump between batch sizes {below:g} and {above:g}: did these runs train alike? Batch size "
            f"{middle} would show it"
        )
        yield Verdict.OFF_THE_CURVE, text
    if doubts.far_seeds:
        named = ", ".join(
            f"seed {seed} at batch size {size} "
            + ("did not get there in" if missed else "took")
            + f" {factor:.2g} times the steps of the other seeds"
            for size, seed, factor, missed in doubts.far_seeds
        )
        yield (
            Verdict.FAR_SEED,
            f"{named}: look at the run (every second draw leaves it out, so the interval allows both)",
        )
    if doubts.moved_by_prior > max(MOVES * doubts.width, NOTABLE):
        yield (
            Verdict.PRIOR_DECIDES,
            f"with priors half or twice as wide B_crit {_factor(doubts.moved_by_prior)}: add seeds, or batch sizes "
            "near it",
        )
    if doubts.extrapolated:
        yield (
            Verdict.EXTRAPOLATED,
            f"{doubts.extrapolated} depends on steps that no batch size measured: take least_product, which does not",
        )
    if WIDE <= math.exp(min(doubts.width, 700.0)) < math.inf and math.isfinite(doubts.width):  # exp(710) overflows
        ratio = math.exp(doubts.width)
        yield (
            Verdict.TOO_WIDE,
            f"the interval of the critical batch size spans a factor of {ratio:.2g}: four times as many seeds make "
            f"that about {math.sqrt(ratio):.2g}, and more batch sizes on both sides of it also help",
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
