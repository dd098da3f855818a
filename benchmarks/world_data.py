"""Worlds of known truth: steps to target as sweeps would have found them, around curves whose critical batch size is
exact.

A curve maps ``B / B_crit`` to ``S / S_min``: it falls to 1 for infinite batches and is 2 at 1. A sweep draws where
``B_crit`` lies between the batch sizes and how the best learning rate drifts with the batch size; its learning rates
are a window of a lattice around the best one, as the search of a sweep leaves them. Away from the best learning rate
steps grow by a parabola in ``ln lr``. Noise has a part that all learning rates of a (batch size, seed) share.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from cbs.theory.noisy_quadratic import NoisyQuadratic, modes_of, passages

Curve = Callable[[np.ndarray], np.ndarray]
"""``B / B_crit`` -> ``S / S_min``."""
Damage = Callable[[pd.DataFrame, np.random.Generator], pd.DataFrame]
"""What happens to the rows of a table before anyone fits them."""

CRITICAL = 2.0**12.5
MIN_STEPS = 1000.0
LRS = 5
PENALTY = 0.1
"""What ``ln S`` gains at twice or half the best learning rate."""
SHARED, OWN = 0.8, 0.6
"""Standard deviations, in those of the noise, of what learning rates share and of what each has for itself."""
EIGHT = tuple(np.arange(8) - 3.5)


@dataclass(frozen=True, kw_only=True)
class World:
    """One kind of sweep.

    Attributes:
        name: as in the table of results.
        curves: by optimizer; a table of one has no column for it.
        octaves: ``log2 B / CRITICAL`` of the batch sizes.
        spread: ``log2 B_crit / CRITICAL`` is uniform between minus and plus this.
        noise: standard deviation of ``ln S`` at the smallest and at the largest batch size, geometric in between.
        tails: degrees of freedom of Student's t with the median absolute deviation of the normal noise; ``None`` for
            normal noise.
        alike: whether a seed has the same shared part at all batch sizes.
        lr_factor: between neighbours of the lattice of learning rates.
        outside: at how many of the largest batch sizes the best learning rate lies above all that are tried.
        damage: done to the table.
        exponents: whether the world belongs to the table of exponents, and its coverage has a goal.
        main: whether the world belongs to the main table.
        form: whether its curves are of another form than those that are fitted.
        endless: whether steps fall for ever; the fewest are then those at the largest batch size that is measured.
        equal: whether its curves have the same critical batch size.
        half_width: goal of the median log half-width; ``None`` without one.
    """

    name: str
    curves: Mapping[str, Curve]
    octaves: tuple[float, ...] = EIGHT
    spread: float = 0.5
    noise: tuple[float, float] = (0.06, 0.06)
    tails: float | None = None
    alike: bool = False
    lr_factor: float = 2.0
    outside: int = 0
    damage: Damage = field(default=lambda frame, rng: frame)
    exponents: bool = False
    main: bool = True
    form: bool = False
    endless: bool = False
    equal: bool = False
    half_width: float | None = None


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The curve of one optimizer in one sweep, at the best learning rate and without noise."""

    curve: Curve
    critical: float
    min_steps: float

    def steps(self, batch_sizes: np.ndarray) -> np.ndarray:
        """Steps to target, shape as ``batch_sizes``."""
        return self.min_steps * self.curve(batch_sizes / self.critical)


def sweep(world: World, seeds: int, index: int) -> tuple[pd.DataFrame, dict[str, Truth]]:
    """The table of a sweep, and the truth by optimizer. The same arguments give the same table."""
    rng = np.random.default_rng([index, seeds, zlib.crc32(world.name.encode())])
    truths, frames = {}, []
    for place, (name, curve) in enumerate(world.curves.items()):
        if not (world.equal and truths):
            critical = CRITICAL * 2.0 ** rng.uniform(-world.spread, world.spread)
        truth = Truth(curve=curve, critical=critical, min_steps=MIN_STEPS * 1.3**place)
        frame = world.damage(_trials(world, truth, seeds, rng), rng)
        truths[name] = _within(truth, CRITICAL * 2.0 ** world.octaves[-1]) if world.endless else truth
        frames.append(frame.assign(optimizer=name) if len(world.curves) > 1 else frame)
    return pd.concat(frames, ignore_index=True), truths


def _within(truth: Truth, largest: float) -> Truth:
    """The same steps with the fewest of them at the largest batch size."""
    end = largest / truth.critical
    fewest = float(truth.curve(np.array(end)))
    at = float(brentq(lambda x: float(truth.curve(np.array(x))) - 2 * fewest, end * 1e-6, end))
    return Truth(
        curve=lambda x: truth.curve(at * x) / fewest, critical=at * truth.critical, min_steps=fewest * truth.min_steps
    )


def _trials(world: World, truth: Truth, seeds: int, rng: np.random.Generator) -> pd.DataFrame:
    sizes = np.round(CRITICAL * 2.0 ** np.array(world.octaves))
    count, step = len(sizes), np.log2(world.lr_factor)
    best = (rng.uniform(0, 1) + rng.uniform(0.3, 0.7) * np.log2(sizes)) / step
    centre = np.where(np.arange(count) >= count - world.outside, np.floor(best) - 1 - LRS // 2, np.round(best))
    lattice = centre[:, None] + np.arange(LRS) - LRS // 2
    logs = np.log(truth.steps(sizes))[:, None] + PENALTY * (step * (lattice - best[:, None])) ** 2
    shared = np.broadcast_to(_draw(world, rng, (1 if world.alike else count, 1, seeds)), (count, 1, seeds))
    noise = SHARED * shared + OWN * _draw(world, rng, (count, LRS, seeds))
    logs = logs[..., None] + np.geomspace(*world.noise, count)[:, None, None] * noise
    at = np.indices(logs.shape).reshape(3, -1)
    return pd.DataFrame(
        {
            "batch_size": sizes[at[0]],
            "steps": np.exp(logs).ravel(),
            "seed": at[2],
            "lr": 1e-3 * world.lr_factor ** lattice[at[0], at[1]],
            "censored": False,
        }
    )


def _draw(world: World, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if world.tails is None:
        return rng.standard_normal(shape)
    quartiles = {2.0: np.sqrt(2 / 3)}  # upper quartile of t; that of the normal is 0.67449
    return 0.67449 / quartiles[world.tails] * rng.standard_t(world.tails, shape)


def power(exponent: float) -> Curve:
    return lambda x: 1 + x**-exponent


def broken(x: np.ndarray) -> np.ndarray:
    """Perfect scaling up to 2 ``B_crit``, and none beyond."""
    return np.maximum(1.0, 2.0 / x)


def rising_examples(x: np.ndarray) -> np.ndarray:
    """Small batches waste examples: ``x S`` has its minimum at ``x`` = 0.22 and rises again below."""
    return 1 + 0.95 / x + 0.05 / x**2


def knee(sharpness: float, exponent: float = 1.0) -> Curve:
    """The asymptotes of the power law, joined more sharply than by it above 1 and more bluntly below; 2 is the square
    root of a sum of squares."""
    return lambda x: (1 + (2**sharpness - 1) * x ** (-sharpness * exponent)) ** (1 / sharpness)


def falling(share: float) -> Curve:
    """The hyperbola, with steps that fall by ``share`` per e-fold of the batch size, for ever."""
    return lambda x: (1 + 1 / x) * x**-share


def slowed(x: np.ndarray) -> np.ndarray:
    """The hyperbola, with runs that large batches make ever slower, 10 % at the critical batch size."""
    return (1 + 1 / x) * (1 + 0.1 * x**0.3)


def two_slopes(x: np.ndarray) -> np.ndarray:
    """Perfect scaling up to 1, and steps that fall with the power 0.3 from there, for ever: the model of appendix F of
    2505.02222."""
    return np.maximum(1 / x, x**-0.3)


def two_exponents(x: np.ndarray) -> np.ndarray:
    """Half of the rise with the exponent 0.6, half with 1.2."""
    return 1 + 0.5 * x**-0.6 + 0.5 * x**-1.2


def falling_exponent(x: np.ndarray) -> np.ndarray:
    """From 1 at small batches to 0.6 at large ones."""
    return 1 + x**-0.8 * np.cosh(np.log(x)) ** 0.2


TARGET = 0.01
"""Of the tuned noisy quadratic, 10,000 coordinates in 100 bins of curvature; the loss starts at 4.7."""
QUADRATIC = NoisyQuadratic.binned(10_000)


def tuned_sgd(batch_size: float) -> float:
    """Steps of SGD on the noisy quadratic at its best learning rate, interpolated in log step; infinite batches are
    allowed."""
    lrs, best = np.geomspace(1e-4, 1.9999, 150), np.inf
    for _ in range(5):
        steps = _sgd_steps(lrs, batch_size)
        at = int(steps.argmin())
        best = min(best, float(steps[at]))
        lrs = np.geomspace(lrs[max(at - 1, 0)], lrs[min(at + 1, len(lrs) - 1)], 20)
    return best


def _sgd_steps(lrs: np.ndarray, batch_size: float) -> np.ndarray:
    return passages(modes_of(QUADRATIC, "sgd", lrs), TARGET, batch_size)


@functools.cache
def _sgd_curve() -> CubicSpline:
    """``ln S / S_min`` over ``ln B / B_crit``, five octaves on either side."""
    least = tuned_sgd(np.inf)
    middle = brentq(lambda log: np.log(tuned_sgd(np.exp(log)) / (2 * least)), 0.0, 14.0, xtol=1e-10)
    logs = np.log(2.0) * np.arange(-5, 5.01, 0.25)
    return CubicSpline(logs, [np.log(tuned_sgd(np.exp(middle + log)) / least) for log in logs])


def noisy_quadratic(x: np.ndarray) -> np.ndarray:
    return np.exp(_sgd_curve()(np.log(x)))


def missing(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return frame[rng.random(len(frame)) >= 0.3]


def diverged(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    lost = rng.random(len(frame)) < 0.2
    return frame.assign(steps=frame["steps"].mask(lost), censored=lost)


def out_of_budget(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    budget = 8 * MIN_STEPS
    return frame.assign(steps=frame["steps"].clip(upper=budget), censored=frame["steps"] > budget)


def slower(factor: float) -> Damage:
    """From twice the middle on, batches ran on another footing."""
    return lambda frame, rng: frame.assign(
        steps=frame["steps"].where(frame["batch_size"] < 2 * CRITICAL, factor * frame["steps"])
    )


def outlier(factor: float) -> Damage:
    def slowed(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
        size, seed = rng.choice(frame["batch_size"].unique()), rng.choice(frame["seed"].unique())
        hit = (frame["batch_size"] == size) & (frame["seed"] == seed)
        return frame.assign(steps=frame["steps"].where(~hit, factor * frame["steps"]))

    return slowed


HYPERBOLA = {"": power(1.0)}
QUIET = (0.02, 0.02)
IN_MAIN = (0.7, 0.85, 1.0, 1.5)
WORLDS = {
    world.name: world
    for world in [
        *(
            World(
                name=f"exponent {a:g}",
                curves={"": power(a)},
                main=a in IN_MAIN,
                exponents=a <= 1.2,
                half_width=0.25 if a == 1.0 else None,
            )
            for a in (0.7, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5)
        ),
        World(name="noisy quadratic, tuned SGD", curves={"": noisy_quadratic}),
        *(
            World(
                name=f"steps fall by {100 * t:g} % per e-fold for ever",
                curves={"": falling(t)},
                endless=True,
                form=True,
            )
            for t in (0.05, 0.15)
        ),
        World(name="square root of 1 + 3/x^2", curves={"": knee(2.0)}, form=True),
        World(name="square root of 1 + 3/x", curves={"": knee(2.0, 0.5)}, form=True),
        World(name="large batches ever slower", curves={"": slowed}, endless=True, form=True),
        World(name="knee 0.7", curves={"": knee(0.7)}, form=True),
        World(name="perfect scaling, then the power 0.3", curves={"": two_slopes}, endless=True, form=True),
        World(name="two exponents", curves={"": two_exponents}, form=True),
        *(
            World(
                name=f"{count} batch sizes a factor {2**octaves} apart, exponent 0.7",
                curves={"": power(0.7)},
                octaves=tuple(octaves * (np.arange(count) - (count - 1) / 2)),
                form=True,
            )
            for count, octaves in ((3, 2), (3, 3), (4, 1), (5, 1))
        ),
        World(name="quick recipe, exponent 0.7", curves={"": power(0.7)}, octaves=(-5, -3, -1, 1, 3), form=True),
        *(
            World(name=f"two optimizers, {what}", curves={"first": first, "second": second}, equal=True, form=True)
            for what, first, second in (
                ("knees 0.7 and 1.5", knee(0.7), knee(1.5)),
                ("exponents 0.85 and 1.2", power(0.85), power(1.2)),
            )
        ),
        World(name="broken curve", curves={"": broken}),
        World(name="examples rise at small batches", curves={"": rising_examples}),
        *(World(name=f"knee {g:g}, 2 % noise", curves={"": knee(g)}, noise=QUIET, main=False) for g in (0.7, 1.5)),
        World(name="exponent falls, 2 % noise", curves={"": falling_exponent}, noise=QUIET, main=False),
        World(name="large batches 20 % slower", curves=HYPERBOLA, damage=slower(1.2), noise=QUIET, main=False),
        World(name="noise grows, 2 to 15 %", curves=HYPERBOLA, noise=(0.02, 0.15)),
        World(name="noise falls, 15 to 2 %", curves=HYPERBOLA, noise=(0.15, 0.02)),
        World(name="heavy tails", curves=HYPERBOLA, tails=2.0),
        World(name="seeds alike at all batch sizes", curves=HYPERBOLA, alike=True),
        World(name="LR grid of factor 4", curves=HYPERBOLA, lr_factor=4.0),
        World(name="best LR outside at 3 of 8", curves=HYPERBOLA, outside=3),
        World(name="best LR outside at all", curves=HYPERBOLA, outside=8),
        World(name="30 % of trials missing", curves=HYPERBOLA, damage=missing),
        World(name="20 % of trials diverged", curves=HYPERBOLA, damage=diverged),
        World(name="small batches out of budget", curves=HYPERBOLA, damage=out_of_budget),
        World(name="one seed slower, x2", curves=HYPERBOLA, damage=outlier(2.0)),
        World(name="one seed slower, x11", curves=HYPERBOLA, damage=outlier(11.0)),
        World(name="2 batch sizes", curves=HYPERBOLA, octaves=(-1, 1)),
        World(name="3 batch sizes", curves=HYPERBOLA, octaves=(-2, 0, 2)),
        World(name="4 batch sizes", curves=HYPERBOLA, octaves=(-3, -1, 1, 3)),
        World(name="all below, to B_crit / 4", curves=HYPERBOLA, octaves=tuple(np.arange(-9.0, -1)), spread=0.0),
        World(name="all above, from 4 B_crit", curves=HYPERBOLA, octaves=tuple(np.arange(2.0, 10)), spread=0.0),
        World(name="three optimizers", curves={f"a = {a:g}": power(a) for a in (0.95, 1.0, 1.05)}, half_width=0.23),
    ]
}
