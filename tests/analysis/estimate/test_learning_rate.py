"""The law of the best learning rate: known laws come back, the trend is named, and intervals hold 95 times in 100."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.learning_rate_law import LEAST, LearningRateLaw, Optimum, Trend, learning_rate_law
from analysis.estimate.studies import Study
from analysis.quantities import Quantity as Estimated
from cbs.trial.lr_choice import censored

SIZES = tuple(2**power for power in range(1, 10))
GRID = 1e-9 * 2.0 ** np.arange(40)
PRUNE_FACTOR = 1.3


@dataclass(frozen=True, kw_only=True)
class Truth:
    """ln steps rise by ``curvature (exp(skew u) - skew u - 1) / skew^2`` at a distance ``u`` from the best ln lr."""

    max_lr: float = 6e-3
    noise_batch_size: float = 30.0
    alpha: float = 0.7
    curvature: float = 0.6
    skew: float = 1e-3
    noise: float = 0.0
    common: float = 0.6

    def best(self, batch_size: float) -> float:
        return self.max_lr / (1 + self.noise_batch_size / batch_size) ** self.alpha

    def slope(self, batch_size: float) -> float:
        return self.alpha / (1 + batch_size / self.noise_batch_size)

    def study(self, batch_size: int, seeds: int, rng: np.random.Generator, prune_factor: float | None) -> Study:
        near = int(np.abs(np.log(GRID / self.best(batch_size))).argmin())
        lrs = GRID[near - 4 : near + 5]
        away = self.skew * np.log(lrs / self.best(batch_size))
        rise = self.curvature * (np.exp(away) - away - 1) / self.skew**2
        shared = math.sqrt(self.common) * rng.standard_normal((1, seeds))
        own = math.sqrt(1 - self.common) * rng.standard_normal((len(lrs), seeds))
        every = 3000 / math.sqrt(batch_size) * np.exp(rise[:, None] + self.noise * (shared + own))
        steps = censored(every, prune_factor)
        hit = np.isfinite(steps)
        bound = np.where(hit, np.nan, (prune_factor or 1.0) * every.min(axis=0))
        status = np.where(hit, "REACHED", "PRUNED").astype(object)
        trials, exact = np.full(steps.shape, -1), np.zeros(steps.shape)
        return Study(batch_size, lrs, np.arange(seeds), steps, status, bound, trials, exact)


def law(
    truth: Truth,
    seeds: int = 1,
    *,
    sizes: tuple[int, ...] = SIZES,
    prune_factor: float | None = None,
    resamples: int = 400,
    seed: int = 0,
) -> LearningRateLaw:
    rng = np.random.default_rng([seeds, seed])
    studies = [truth.study(size, seeds, rng, prune_factor) for size in sizes]
    return learning_rate_law(studies, AnalysisConfig(resamples=resamples, seed=seed))


def holds(found: Estimated, truth: float) -> bool:
    assert found.value is not None
    low, high = found.interval
    return (low is None or low <= truth) and (high is None or truth <= high)


def test_a_known_law_comes_back() -> None:
    truth = Truth(noise_batch_size=10.0, alpha=0.8, noise=1e-3)
    found = law(truth, 3)
    assert found.trend is Trend.SATURATES
    for value, known in (
        (found.max_lr, truth.max_lr),
        (found.noise_batch_size, truth.noise_batch_size),
        (found.alpha, truth.alpha),
        (found.first_slope, truth.slope(SIZES[0])),
    ):
        assert value.value == pytest.approx(known, rel=0.06)
        assert holds(value, known)
    np.testing.assert_allclose(found.log_lrs(SIZES)[0], np.log([truth.best(size) for size in SIZES]), atol=0.01)
    factor = found.factor(16, 4)
    assert factor.value == pytest.approx(truth.best(64) / truth.best(16), rel=0.02)
    assert not factor.square_root
    assert not factor.linear
    assert not factor.extrapolated
    beyond = found.factor(512, 2)
    assert beyond.extrapolated


@pytest.mark.parametrize(("alpha", "square_root", "linear"), [(0.5, True, False), (1.0, False, True)])
def test_far_below_saturation_it_is_a_power_law_and_one_rule_holds(
    alpha: float, square_root: bool, linear: bool
) -> None:
    found = law(Truth(max_lr=50.0, noise_batch_size=1e6, alpha=alpha, noise=0.03), 3, prune_factor=PRUNE_FACTOR)
    assert found.trend is Trend.POWER_LAW
    assert found.max_lr == found.noise_batch_size == found.alpha == Estimated()
    assert holds(found.slope, alpha)
    factor = found.factor(SIZES[-1], 4)
    assert (factor.square_root, factor.linear) == (square_root, linear)


@pytest.mark.parametrize(("alpha", "trend"), [(0.0, Trend.FLAT), (-0.4, Trend.FALLS)])
def test_a_constant_and_a_falling_best_learning_rate_are_called_so(alpha: float, trend: Trend) -> None:
    found = law(Truth(max_lr=6e-3, noise_batch_size=1e4, alpha=alpha, noise=0.05), 3, prune_factor=PRUNE_FACTOR)
    assert found.trend is trend
    assert holds(found.slope, alpha)
    assert found.alpha == Estimated()


def test_optima_at_an_edge_are_left_out_and_four_inside_are_needed() -> None:
    truth = Truth(alpha=0.5, noise_batch_size=1e5, max_lr=1.0)
    rng = np.random.default_rng(0)
    studies = [truth.study(size, 1, rng, None) for size in SIZES]
    nothing = [replace(study, steps=study.steps * np.nan) for study in studies]
    assert not learning_rate_law(nothing, AnalysisConfig(resamples=100, seed=0)).optima
    last = studies[-1]
    kept = slice(0, 3)  # the best one lies beyond
    part = {name: getattr(last, name)[kept] for name in ("lrs", "steps", "status", "bound", "trials", "resolution")}
    edged = [*studies[:-1], replace(last, **part)]
    found = learning_rate_law(edged, AnalysisConfig(resamples=100, seed=0))
    assert [entry.edge for entry in found.optima] == [0] * (len(SIZES) - 1) + [1]
    assert found.inside == list(SIZES[:-1])
    without = learning_rate_law(studies[:-1], AnalysisConfig(resamples=100, seed=0))
    assert found.slope == without.slope
    few = law(truth, sizes=SIZES[: LEAST - 1])
    assert few.trend is Trend.UNKNOWN
    assert few.factor(8, 2) is few.scatter is None
    assert few.slope == few.first_slope == few.max_lr == Estimated()
    assert {entry.interval for entry in few.optima} == {(None, None)}
    assert all(None not in entry.interval for entry in law(truth, 2, sizes=SIZES[: LEAST - 1]).optima)
    assert law(truth, sizes=SIZES[:LEAST]).trend is not Trend.UNKNOWN


LRS = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)


def one(steps: Sequence[Sequence[float]], lrs: Sequence[float] = LRS, **changes: np.ndarray) -> Optimum:
    """The optimum where rows are learning rates, beside a batch size whose bottom is a parabola of curvature .2. NaN is
    a trial that was pruned at 130 steps, 0 one that was never run."""
    table = np.asarray(steps, dtype=float)
    status = np.where(table == 0, "", np.where(np.isnan(table), "PRUNED", "REACHED")).astype(object)
    columns = {"steps": np.where(table > 0, table, np.nan), "status": status}
    columns |= {"bound": np.where(status == "PRUNED", 130.0, np.nan)} | changes
    columns |= {"trials": np.full(table.shape, -1), "resolution": np.zeros(table.shape)}
    of = Study(8, np.asarray(lrs), np.arange(table.shape[1]), **columns)
    beside = np.array(parabola(4e-3))
    nothing, exact = np.full(beside.shape, math.nan), np.zeros(beside.shape)
    done = np.full(beside.shape, "REACHED", dtype=object)
    known = Study(16, np.array(LRS), np.arange(1), beside, done, nothing, exact, exact)
    return learning_rate_law([of, known]).optima[0]


def parabola(best: float, lrs: Sequence[float] = LRS) -> list[list[float]]:
    return [[100 * math.exp(0.2 * math.log(lr / best) ** 2)] for lr in lrs]


@pytest.mark.parametrize("lrs", [LRS, (1e-3, 1.7e-3, 4.1e-3, 6e-3, 16e-3)])
@pytest.mark.parametrize("best", [2.3e-3, 4e-3, 5.1e-3])
def test_the_bottom_of_a_parabola_is_found_between_grid_points(best: float, lrs: Sequence[float]) -> None:
    noise = 1e-3 * np.random.default_rng(0).standard_normal((5, 3))
    found = one(np.array(parabola(best, lrs)) * np.exp(noise), lrs)
    assert found.lr == pytest.approx(best, rel=0.03)
    assert found.edge == 0
    assert 0 < found.variance < (0.2 * found.step) ** 2


def test_one_pruned_seed_makes_a_neighbour_a_bound_and_one_never_run_does_not() -> None:
    whole = one([[110, 110.1], [100, 100.1], [120, 119.9]], LRS[:3])
    pruned = one([[110, 110.1], [100, 100.1], [120, math.nan]], LRS[:3])
    never = one([[110, 110.1], [100, 100.1], [120, 0]], LRS[:3])
    assert never.log_lr == pytest.approx(whole.log_lr, abs=0.01)
    assert pruned.log_lr == pytest.approx(whole.log_lr, abs=0.1)


@pytest.mark.parametrize(("best", "edge"), [(2e-4, -1), (9e-2, 1)])
def test_at_an_edge_only_a_bound_is_known(best: float, edge: int) -> None:
    found = one(parabola(best))
    assert (found.edge, found.lr) == (edge, pytest.approx(LRS[-1] if edge > 0 else LRS[0]))
    low, high = found.interval
    ends = (LRS[-1] / math.sqrt(2), None) if edge > 0 else (None, LRS[0] * math.sqrt(2))
    assert (low, high) == tuple(None if end is None else pytest.approx(end) for end in ends)
    # ties go to the lower one, and a single learning rate is an edge
    assert one([[100], [100], [110]], LRS[:3]).edge == -1
    assert one([[100]], LRS[:1]).edge != 0


def draw(index: int) -> tuple[Truth, tuple[int, ...]]:
    """A truth and 6 to 9 batch sizes: 3-15 % seed noise, skewed or not, saturating inside, beyond or before them."""
    rng = np.random.default_rng([7, index])
    sizes = SIZES[: rng.integers(6, 10)]
    truth = Truth(
        alpha=rng.uniform(0.3, 1.0),
        noise_batch_size=math.exp(rng.uniform(math.log(sizes[0] / 2), math.log(sizes[-1] * 8))),
        max_lr=math.exp(rng.uniform(math.log(3e-3), math.log(2e-2))),
        noise=math.exp(rng.uniform(math.log(0.03), math.log(0.15))),
        common=rng.uniform(0.3, 0.9),
        curvature=rng.uniform(0.3, 1.0),
        skew=rng.uniform(-0.3, 0.8),
    )
    return truth, sizes


Quantity = Callable[[LearningRateLaw, Truth, tuple[int, ...]], tuple[Estimated, float]]


def factor_at(place: int) -> Quantity:
    def read(found: LearningRateLaw, truth: Truth, sizes: tuple[int, ...]) -> tuple[Estimated, float]:
        factor = found.factor(sizes[place], 4)
        return Estimated(value=factor.value, interval=factor.interval), truth.best(4 * sizes[place]) / truth.best(
            sizes[place]
        )

    return read


def line(found: LearningRateLaw, truth: Truth, sizes: tuple[int, ...]) -> tuple[Estimated, float]:
    return found.slope, float(np.polyfit(np.log(sizes), np.log([truth.best(size) for size in sizes]), 1)[0])


QUANTITIES: dict[str, Quantity] = {
    "first factor": factor_at(0),
    "last factor": factor_at(-1),
    "first slope": lambda found, truth, sizes: (found.first_slope, truth.slope(sizes[0])),
    "line": line,
    "max_lr": lambda found, truth, sizes: (found.max_lr, truth.max_lr),
    "noise_batch_size": lambda found, truth, sizes: (found.noise_batch_size, truth.noise_batch_size),
}
"""Not alpha: its bound is one of its ends more often than not."""

CLAIMS = ("max_lr", "noise_batch_size")
"""Named only where the interval of the noise batch size ends below the largest batch size; such cases may be sure."""


@pytest.mark.parametrize("seeds", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_intervals_of_the_slope_are_neither_too_narrow_nor_too_wide(seeds: int) -> None:
    errors, halves = [], []
    for index in range(100):
        truth, sizes = draw(index)
        found = law(truth, seeds, sizes=sizes, prune_factor=PRUNE_FACTOR, resamples=200, seed=index)
        value, known = line(found, truth, sizes)
        low, high = value.interval
        errors.append(value.value - known)
        halves.append((high - low) / 2)
    ratio = np.abs(errors) / np.array(halves)
    assert np.mean(ratio > 1) < 0.12
    # 0.41 for a normal error and its own interval; with one seed the size of the noise is not known either
    assert (0.3 if seeds > 1 else 0.27) < np.mean(ratio) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_intervals_hold_the_truth_95_times_in_100(seeds: int) -> None:
    held: dict[str, list[bool]] = {name: [] for name in QUANTITIES}
    saturates = 0
    for index in range(300):
        truth, sizes = draw(index)
        found = law(truth, seeds, sizes=sizes, prune_factor=PRUNE_FACTOR, resamples=1000, seed=index)
        saturates += found.trend is Trend.SATURATES
        for name, read in QUANTITIES.items():
            value, known = read(found, truth, sizes)
            if value.value is not None:
                held[name].append(holds(value, known))
    assert saturates > 30
    for name, cases in held.items():
        assert 0.9 <= np.mean(cases) <= (1.0 if name in CLAIMS else 0.995), name


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_saturation_and_dependence_are_claimed_by_mistake_at_most_once_in_20(seeds: int) -> None:
    trends = {alpha: [] for alpha in (0.0, 0.5)}  # type: dict[float, list[Trend]]
    for index in range(200):
        truth, sizes = draw(index)
        for alpha, names in trends.items():
            other = Truth(**vars(truth) | {"alpha": alpha, "noise_batch_size": 1e6})
            names.append(law(other, seeds, sizes=sizes, prune_factor=PRUNE_FACTOR, resamples=400, seed=index).trend)
    dependent = sum(trend is not Trend.FLAT for trend in trends[0.0])
    saturated = sum(trend is Trend.SATURATES for trend in trends[0.5])
    assert 1 <= dependent <= 16
    assert saturated <= 10
