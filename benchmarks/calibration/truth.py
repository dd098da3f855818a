"""The truth of a case: steps to target at the best learning rate of all, over batch sizes, and what a sweep should say.

Two curves are true. That of the *expected loss* is in closed form
(:mod:`extensions.theory.noisy_quadratic`). That of *trials* is the geometric mean, over seeds, of the first
evaluation below the target (:mod:`.first_passage`), at the learning rate at which it is lowest; sweeps measure this
one. Of either there are two estimands:

- **exact**: the batch size around which steps times examples of the curve are least from half to twice it, ``S_min``
  the steps of infinite batches and ``E_min`` the limit of examples at small ones;
- **fitted**: what least squares in ``ln S`` make of the exact curve at the batch sizes of the sweep, with a free
  exponent for ``B_crit`` and ``S_min``, as a hyperbola for ``E_min``.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import least_squares

from analysis.estimate.definitions.least_product import SPAN
from benchmarks.calibration.cases import PLAN, TARGET, Case
from benchmarks.calibration.first_passage import Walk, first_passages
from extensions.theory.noisy_quadratic import tuned

QUANTITIES = ("critical", "min_steps", "min_examples")
RUNS = (250, 2000)
"""Of every learning rate that is looked at, and at the one found."""
SPACING = 1 / 8  # Of the learning rates that are looked at, in octaves
DRAWS = 40  # Of the truth, for its standard errors
HUGE = 1e12  # A batch size without noise
TINY = 1 / 16  # Of the smallest batch size of the sweep: where examples have their limit


@dataclass(frozen=True, kw_only=True)
class Best:
    """Steps at the best learning rate of a batch size.

    Attributes:
        batch_size: examples per step.
        lr: the learning rate.
        steps: geometric mean over seeds.
        error: standard error of ``ln steps``.
        deviation: standard deviation of ``ln steps`` of one seed.
        expected_lr, expected_steps: the same of the expected loss.
    """

    batch_size: float
    lr: float
    steps: float
    error: float
    deviation: float
    expected_lr: float
    expected_steps: float


@dataclass(frozen=True, kw_only=True)
class Estimands:
    """``B_crit``, ``S_min`` and ``E_min`` of a curve."""

    critical: float
    min_steps: float
    min_examples: float


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Attributes are by increasing batch size: the sweep's, between a tiny one and a huge one."""

    points: tuple[Best, ...]

    @property
    def swept(self) -> tuple[Best, ...]:
        """The batch sizes of the sweep."""
        return self.points[1:-1]

    def estimands(self, of: str, kind: str) -> Estimands:
        """Args: ``of`` is ``"trials"`` or ``"expected loss"``, ``kind`` is ``"exact"`` or ``"fitted"``."""
        steps = np.array([point.steps if of == "trials" else point.expected_steps for point in self.points])
        sizes = np.array([point.batch_size for point in self.points])
        return exact(sizes, steps) if kind == "exact" else fitted(sizes[1:-1], steps[1:-1])

    def error(self, kind: str) -> Estimands:
        """Standard errors of the logarithms of the :meth:`estimands` of trials, as the runs behind them are finite."""
        rng = np.random.default_rng(0)
        sizes, steps, errors = (
            np.array([getattr(point, name) for point in self.points]) for name in ("batch_size", "steps", "error")
        )
        found = []
        for _ in range(DRAWS):
            moved = steps * np.exp(errors * rng.standard_normal(len(errors)))
            drawn = exact(sizes, moved) if kind == "exact" else fitted(sizes[1:-1], moved[1:-1])
            found.append([math.log(getattr(drawn, name)) for name in QUANTITIES])
        spread = np.std(found, axis=0, ddof=1)
        return Estimands(**dict(zip(QUANTITIES, map(float, spread), strict=True)))

    def to_json(self) -> list[dict[str, float]]:
        return [asdict(point) for point in self.points]

    @classmethod
    def from_json(cls, data: list[dict[str, float]]) -> Truth:
        return cls(points=tuple(Best(**entry) for entry in data))


def truth_of(case: Case) -> Truth:
    """Minutes; the same every time."""
    return Truth(points=tuple(_shown(case, map(functools.partial(best_of, case), sizes_of(case)))))


def sizes_of(case: Case) -> tuple[float, ...]:
    return (TINY * case.batch_sizes[0], *case.batch_sizes, HUGE)


def _shown(case: Case, points: Iterator[Best]) -> Iterator[Best]:
    for point in points:
        line = f"{case.name}: {point.batch_size:g} examples, {point.steps:.1f} steps, lr {point.lr:.4g}"
        print(line, file=sys.stderr, flush=True)
        yield point


def best_of(case: Case, batch_size: float, runs: tuple[int, int] = RUNS) -> Best:
    """The learning rate with the fewest steps: a search from that of the expected loss with the same random numbers
    for all, the vertex of the parabola through the three best, and steps there, drawn anew."""
    expected = tuned(case.theory, case.method, TARGET.value, batch_size, case.momentum, power=case.power)
    assert expected is not None

    def logs(lr: float, count: int, seed: int) -> np.ndarray:
        walk = Walk(case.theory, lr, batch_size, case.momentum, case.power)
        rng = np.random.default_rng([seed, int(batch_size)])
        parts = [min(500, count - done) for done in range(0, count, 500)]
        drawn = functools.partial(first_passages, walk, TARGET.value, PLAN, rng=rng, most=int(4 * expected.steps) + 10)
        return np.log(np.concatenate([drawn(part) for part in parts]))

    @functools.cache
    def mean(place: int) -> float:
        return float(logs(expected.lr * 2.0 ** (SPACING * place), runs[0], 1).mean())

    place = 0
    while (lower := min(range(place - 2, place + 3), key=mean)) != place:
        place = lower
    shift = place + _vertex(mean(place - 1), mean(place), mean(place + 1))
    lr = expected.lr * 2.0 ** (SPACING * shift)
    found = logs(lr, runs[1], 2)
    return Best(
        batch_size=batch_size,
        lr=lr,
        steps=math.exp(found.mean()),
        error=float(found.std(ddof=1) / math.sqrt(len(found))),
        deviation=float(found.std(ddof=1)),
        expected_lr=expected.lr,
        expected_steps=expected.steps,
    )


def _vertex(left: float, middle: float, right: float) -> float:
    """Of the parabola through points at -1, 0 and 1 of which the middle one is lowest; 0 where one is infinite."""
    bend = left - 2.0 * middle + right
    return 0.5 * (left - right) / bend if math.isfinite(bend) and bend > 0 else 0.0


def exact(sizes: np.ndarray, steps: np.ndarray) -> Estimands:
    """Between the batch sizes the curve is a spline of ``ln S`` over ``ln B``."""
    curve = CubicSpline(np.log(sizes[1:-1]), np.log(steps[1:-1]))
    reach = math.log(SPAN)
    places = np.linspace(math.log(sizes[1]) + reach, math.log(sizes[-2]) - reach, 20_001)
    # the mean of the product from half to twice a batch size rises by what it is larger at the double
    rise = 2 * reach + 2 * (curve(places + reach) - curve(places - reach))
    least = float(places[np.cumsum(rise).argmin()])
    return Estimands(critical=math.exp(least), min_steps=float(steps[-1]), min_examples=float(sizes[0] * steps[0]))


def fitted(sizes: np.ndarray, steps: np.ndarray) -> Estimands:
    """Least squares by scipy, apart from the product's own fit."""
    logs, targets = np.log(sizes), np.log(steps)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        level, critical, exponent = (*parameters, 1.0)[:3]
        return np.asarray(level + np.logaddexp(0.0, exponent * (critical - logs)) - targets)

    start = [targets[-1], float(logs.mean())]
    free = least_squares(residuals, [*start, 1.0], xtol=1e-12).x
    held = least_squares(residuals, start, xtol=1e-12).x
    level, middle, exponent = free
    # B S^2 of a power law is the same at half and twice B where (B/B_0)^a = 2^a - 2^(1-a); with an exponent of half or
    # less nowhere
    least = middle + math.log(2**exponent - 2 ** (1 - exponent)) / exponent if exponent > 0.5 else -math.inf
    return Estimands(critical=math.exp(least), min_steps=math.exp(level), min_examples=math.exp(held[0] + held[1]))


def at_nearest(truth: Truth, batch_size: float) -> Best:
    """The swept batch size nearest to one, in log."""
    return min(truth.swept, key=lambda point: abs(math.log(point.batch_size / batch_size)))


def fine_grid(best: Best) -> tuple[float, ...]:
    """Three learning rates a factor 2^(1/4) apart, the best of all in the middle."""
    return tuple(float(f"{best.lr * 2.0 ** (power / 4):.6g}") for power in (-1, 0, 1))
