"""Answer at one checkpoint: which factors lost, k* by both rules, whether the window was long enough, a verdict."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import fdtrc

from analysis.config import AnalysisConfig
from analysis.estimate.comparison import Standing
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.noise import NoiseScale, measure
from analysis.formatting import number
from analysis.quantities import UNKNOWN, Array, Quantity
from cbs.trial.store import finite_or_none
from cbs.trial.trial_files import read_steps
from extensions.branching.factors import (
    BranchLosses,
    FactorCurve,
    LocalFactor,
    local_factor,
    published,
    recovery,
    smoothed,
)
from extensions.branching.reading import TunedBranches

_UNLIKE = 0.01  # Level of the F test for losses around k* that scatter more over seeds than those of smaller factors

# Fraction of the tolerance up to which the fall of the loss expected below the smallest factor is not reported
_LEVEL = 0.25

_TAIL = 0.025  # Probability that the loss does not fall below which it is said to
_WIDE = 4.0  # Ratio of the upper to the lower end of an interval above which k* cannot be told
_SMOOTHED = 64  # Number of final training losses that are smoothed; earlier ones have less weight than a rounding error


@dataclass(frozen=True, kw_only=True)
class BranchesAt:
    """The branches of one factor at one checkpoint.

    Attributes:
        factor: ratio of the batch size to that of the trunk.
        batch_size: examples per step.
        lr_factor: ratio of the best learning rate that was run to that of the trunk.
        at_grid_edge: whether that rate is the lowest or the highest of several.
        seeds: number of seeds whose loss is known, infinite ones included.
        diverged: number of branches that diverged.
        loss: mean loss over seeds, in the unit of the metric; ``None`` if a branch diverged.
        excess: loss above that of the best factor, both at their best learning rates; no value if a branch diverged.
        standing: ``equal`` to the best factor within the tolerance, ``worse``, or ``cannot be told``.
        train_loss: mean over seeds of the smoothed training loss, for the published rule.
    """

    factor: float
    batch_size: int
    lr_factor: float
    at_grid_edge: bool
    seeds: int
    diverged: int
    loss: float | None
    excess: Quantity
    standing: str
    train_loss: float | None


@dataclass(frozen=True, kw_only=True)
class LocalCheckpoint:
    """Local critical batch size at one checkpoint of one optimizer.

    Attributes:
        examples: number of examples that the trunk had seen at the checkpoint.
        loss: loss of the checkpoint, in the unit of the metric; ``None`` if no branch was evaluated at its start.
        batch_size: batch size of the trunk, in examples.
        window: number of examples after which losses are compared.
        factors: branches in order of increasing factor.
        factor: k*.
        critical_batch_size: k* times the batch size of the trunk.
        published: point and interval of the published rule, times the batch size of the trunk.
        published_factor: k* by the published rule.
        recovery: ratio of k* after the whole window to k* after half of it.
        noise_scale: simple noise scale of the branches whose factor is nearest to 1, in examples.
        matched_noise_scale: their noise scale in the optimizer's geometry, ``matched_geometry``.
        noise_scale_ratio, matched_noise_scale_ratio: their ratios to the local critical batch size.
        branches: number of branches.
        verdict: ``ok``, or what speaks against the answer.
        advice: what to do about the verdict.
        drawn: draws of the logarithm of the local critical batch size, ``[R]``; infinite beyond the largest factor.
    """

    examples: int
    loss: float | None
    batch_size: float
    window: float
    factors: tuple[BranchesAt, ...]
    factor: Quantity
    critical_batch_size: Quantity
    published: Quantity
    published_factor: float | None
    recovery: Quantity
    noise_scale: NoiseScale
    matched_noise_scale: NoiseScale
    matched_geometry: str
    noise_scale_ratio: Quantity
    matched_noise_scale_ratio: Quantity
    branches: int
    verdict: Verdict
    advice: str
    drawn: Array = field(repr=False)


def checkpoint(
    branches: TunedBranches, whole: FactorCurve | None, tolerance: float, config: AnalysisConfig, seed: int
) -> LocalCheckpoint:
    """Return the answer at one checkpoint.

    Args:
        branches: branches of the checkpoint.
        whole: draws of their losses at the end of the window.
        tolerance: excess loss up to which a branch has not lost, in the unit of the metric.
        config: configuration of the analysis.
        seed: added to the seed of the configuration; different for every checkpoint.
    """
    branched, trials = branches.branched, branches.branched.trials
    found, short = _at(branches, whole, tolerance, config, seed), UNKNOWN
    half = branches.curve("half", config, seed)
    if whole is not None and half is not None:
        early = _at(branches, half, tolerance, config, seed)
        short = recovery((found, whole), (early, half), config.confidence, config.seed + seed)
    size = float((trials["batch_size"] / trials["factor"]).iloc[0])
    training = _training(branches)
    simple, matched, geometry = _noise_scales(branches, config.confidence)
    largest, point = published(training)
    critical = found.factor.times(size)
    verdict, advice = _verdict(found, whole, branches, short, tolerance)
    return LocalCheckpoint(
        examples=branched.examples,
        loss=finite_or_none(branched.group.target.sign * float(trials["start"].mean())),
        batch_size=size,
        window=branched.window,
        factors=tuple(_factors(branches, training, found)),
        factor=found.factor,
        critical_batch_size=critical,
        published=point.times(size),
        published_factor=largest,
        recovery=short,
        noise_scale=simple,
        matched_noise_scale=matched,
        matched_geometry=geometry,
        noise_scale_ratio=simple.over(critical),
        matched_noise_scale_ratio=matched.over(critical),
        branches=int((branches.rows >= 0).sum()),
        verdict=verdict,
        advice=advice,
        drawn=found.drawn + math.log(size),
    )


def _at(
    branches: TunedBranches, curve: FactorCurve | None, tolerance: float, config: AnalysisConfig, seed: int
) -> LocalFactor:
    if curve is None:
        return LocalFactor(drawn=np.empty(0))
    diverged = branches.factors[branches.diverged & (branches.factors > curve.factors[-1])]
    first = float(diverged[0]) if len(diverged) else None
    return local_factor(curve, tolerance, config.confidence, first, config.seed + seed)


def _training(branches: TunedBranches) -> BranchLosses:
    """Return the smoothed training loss of every branch; infinity if it diverged."""
    window, used = branches.branched.window, np.unique(branches.rows[branches.rows >= 0])
    values = branches.branched.trials["loss"].to_numpy(float, copy=True)
    for index in used[np.isfinite(values[used])]:
        row = branches.branched.trials.iloc[index]
        columns, _ = read_steps(Path(row["folder"]) / "steps.parquet")
        last = round(window / row["batch_size"])
        values[index] = smoothed(np.asarray(columns["train_loss"])[:last][-_SMOOTHED:])
    return branches.arranged(values)


def _noise_scales(branches: TunedBranches, confidence: float) -> tuple[NoiseScale, NoiseScale, str]:
    """Return the simple and the matched noise scale of the branches whose batch size is nearest to that of the trunk,
    measured over the second half of their steps, and the name of the geometry."""
    for index in np.argsort(np.abs(np.log(branches.factors)), kind="stable"):
        own = branches.of_factor(int(index))
        own = own[np.isfinite(own["loss"])]
        if len(own):
            recorded = [read_steps(Path(folder) / "steps.parquet") for folder in own["folder"]]
            steps = [float(len(columns["step"])) for columns, _ in recorded]
            found = measure(recorded, steps, int(own["batch_size"].iloc[0]), confidence=confidence)
            geometry = found.geometry.geometry if found.geometry else ""
            return found.summary, found.matched, geometry
    nothing = NoiseScale(None, note="no branch trained to the end", measured=False)
    return nothing, nothing, ""


def _factors(branches: TunedBranches, training: BranchLosses, found: LocalFactor) -> Iterator[BranchesAt]:
    for index, factor in enumerate(branches.factors.tolist()):
        unknown = Standing.WORSE if branches.diverged[index] else Standing.UNKNOWN
        excess, standing = found.compared.get(factor, (UNKNOWN, unknown))
        seen = branches.of_factor(index)["loss"].dropna().to_numpy(float)
        yield BranchesAt(
            factor=factor,
            batch_size=branches.studies[index].batch_size,
            lr_factor=float(branches.lr_factors[index]),
            at_grid_edge=bool(branches.edges[index]),
            seeds=len(seen),
            diverged=int(np.isposinf(seen).sum()),
            loss=finite_or_none(branches.branched.group.target.sign * float(seen.mean())) if len(seen) else None,
            excess=excess,
            standing=standing,
            train_loss=finite_or_none(float(np.nanmean(training.losses[:, index]))) if len(seen) else None,
        )


def _verdict(
    found: LocalFactor, curve: FactorCurve | None, branches: TunedBranches, short: Quantity, tolerance: float
) -> tuple[Verdict, str]:
    if curve is None:
        return Verdict.UNTOLD, "no branch trained to the end of the window: lower the learning rate"
    if not curve.freedom and not curve.lent:
        return Verdict.TOO_FEW_SEEDS, "run every branch with 3 seeds or more: one seed does not show the noise"
    largest, smallest = number_of(curve.factors[-1]), number_of(curve.factors[0])
    low, high = found.factor.interval
    if (found.beyond == "above" and low is not None and low < 0.999 * curve.factors[-1]) or (
        found.beyond == "below" and len(curve.factors) > 1 and (high is None or high > curve.factors[1])
    ):
        side = f"above {largest}" if found.beyond == "above" else f"below {smallest}"
        return Verdict.UNTOLD, f"run more seeds, and factors {side}"
    if found.beyond == "above":
        return Verdict.NONE_LOST, f"try factors above {largest}"
    if found.beyond == "below":
        return Verdict.ALL_LOST, f"try factors below {smallest}"
    if advice := _near_divergence(branches, found, curve):
        return Verdict.NEAR_DIVERGENCE, advice
    if (short.interval[0] or 0.0) > 1.0 or (short.interval[1] or math.inf) < 1.0:
        return Verdict.SHORT_WINDOW, (
            f"after half of the window k* is {1 / (short.value or 1.0):.2g} times as large: double the window"
        )
    if low is None or high is None or high > _WIDE * low:
        return Verdict.UNTOLD, "run more seeds of the factors around the tolerance"
    notes = []
    if fall := _still_falling(curve, tolerance):
        notes.append(
            f"the loss still falls towards factors below {smallest}, by about {number(fall)}, and k* with it: try "
            "smaller ones"
        )
    if curve.lent:
        notes.append("too few seeds ran the same factors, so the noise is that of other checkpoints")
    if branches.edges.any():
        notes.append("the best learning rate of a factor lies at the edge of those that were tried")
    return Verdict.OK, "; ".join(notes)


def _near_divergence(branches: TunedBranches, found: LocalFactor, curve: FactorCurve) -> str:
    """Return advice if a branch diverged at a factor below the upper end of the interval of k*, or losses at one of the
    factors around k* and its interval scatter more over seeds than those of smaller factors; otherwise an empty text.
    Such losses are skewed, so that few seeds often miss the largest ones."""
    high = found.factor.interval[1] or math.inf
    passed = branches.factors[branches.diverged & (branches.factors < min(high, curve.factors[-1]))]
    if len(passed):
        return (
            f"a branch at factor {number_of(passed[0])} diverged, but those of a larger factor, which decide k*, did "
            "not: try lower learning rates"
        )
    factors, values = curve.factors, curve.losses
    count = np.isfinite(values).sum(axis=1)
    after, last = np.minimum(np.searchsorted(factors, (found.factor.value or math.inf, high)), len(factors) - 1)
    below = [index for index in range(max(after - 1, 1)) if count[index] > 1]
    usual = float(np.median([np.nanvar(values[index], ddof=1) for index in below])) if below else 0.0
    for index in range(max(after - 1, 1), last + 1):
        if count[index] < 2 or not usual:
            continue
        ratio = float(np.nanvar(values[index], ddof=1)) / usual
        if fdtrc(count[index] - 1, min(count[below]) - 1, ratio) < _UNLIKE:
            return (
                f"losses at factor {number_of(factors[index])} scatter {math.sqrt(ratio):.0f} times as far over seeds "
                "as those of smaller ones, so that intervals are too narrow: try lower learning rates, or more seeds"
            )
    return ""


def _still_falling(curve: FactorCurve, tolerance: float) -> float | None:
    """Return by how much the loss would fall from the smallest factor to factor 0, as losses are linear in small batch
    sizes; ``None`` if the two smallest factors do not show a fall, or one too small to matter."""
    apart = curve.drawn[:, 1] - curve.drawn[:, 0]
    fall = float(np.median(apart)) * float(curve.factors[0] / (curve.factors[1] - curve.factors[0]))
    return fall if np.quantile(apart, _TAIL) > 0 and fall > _LEVEL * tolerance else None


def number_of(factor: float) -> str:
    """Return a factor as text: ``1/4``, ``3``."""
    inverse = 1.0 / factor
    return f"1/{inverse:.0f}" if factor < 1 and abs(inverse - round(inverse)) < 1e-6 * inverse else f"{factor:g}"
