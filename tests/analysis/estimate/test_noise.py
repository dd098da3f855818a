"""Noise scales, plain and matched: moments averaged first, divided last, nothing floored."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.estimate import noise
from analysis.estimate.noise import NoiseScale, NoiseScales, correct, near, pooled_ratio
from analysis.quantities import Quantity
from cbs.noise_scale.interval import ratio_interval
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from cbs.trial.trial_files import read_steps
from tests.factories import TARGET, Truth, geometry_columns, trial


def folder(root: Path, batch_size: int = 8, seed: int = 0, truth: Truth | None = None, steps: int = 400) -> Path:
    config = TrialConfig(
        workload=Choice(name="synthetic"),
        optimizer=Choice(name="adamw"),
        lr=1e-3,
        batch_size=batch_size,
        seed=seed,
        target=TARGET,
        max_steps=steps,
    )
    result = trial(config, [(0, 5.0), (1, 4.0), (steps, 2.3)], TrialStatus.REACHED, truth=truth)
    Store(root).save(result)
    return Store(root).trials / result.trial_id


def measure(folders: list[Path], steps_to_target: list[float], batch_size: int) -> NoiseScales:
    return noise.measure([read_steps(path / "steps.parquet") for path in folders], steps_to_target, batch_size)


def test_steps_of_every_seed_count_alike() -> None:
    short, long = np.ones((2, 10)), np.stack([np.ones(30), np.full(30, 5.0)])
    assert pooled_ratio([short, long]).value == pytest.approx((10 * 1 + 30 * 5) / 40)


@pytest.mark.parametrize(("square", "trace", "which"), [(-1.0, 5.0, "signal"), (1.0, -5.0, "noise")])
def test_a_mean_that_is_not_positive_is_said_not_floored(square: float, trace: float, which: str) -> None:
    found = pooled_ratio([np.stack([np.full(50, square), np.full(50, trace)])])
    assert found.value is None
    assert found.interval == (None, None)
    assert re.search(f"mean {which} is not positive", found.note)


def ar1(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> np.ndarray:
    series = rng.standard_normal(shape)
    for step in range(1, shape[-1]):
        series[..., step] = rho * series[..., step - 1] + math.sqrt(1 - rho**2) * series[..., step]
    return series


@pytest.mark.parametrize(("seeds", "steps", "rho"), [(1, 50, 0.0), (1, 300, 0.8), (3, 60, 0.5), (3, 400, 0.8)])
def test_the_interval_covers_correlated_noise_of_all_seeds(seeds: int, steps: int, rho: float) -> None:
    """300 draws of seeds whose true |G|^2 differ by 10 %: at 95 % the chance of fewer than 273 hits is 0.001, at 87 %
    it is 0.96."""
    rng = np.random.default_rng(0)
    noise = ar1(rng, (300, seeds, 2, steps), rho)
    hits = 0
    for draw in noise:
        levels = np.exp(0.1 * rng.standard_normal(seeds))
        windows = [np.array([[level], [30.0]]) * (1 + 0.5 * own) for level, own in zip(levels, draw, strict=True)]
        low, high = pooled_ratio(windows).interval
        truth = 30.0 / levels.mean()
        hits += (low is None or low <= truth) and (high is None or truth <= high)
    assert hits >= 273


def test_every_window_is_a_series_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[float], list[bool]]] = []

    def recorded(*sums: np.ndarray, steps: np.ndarray, starts: np.ndarray, **rest: Any) -> Any:
        seen.append((steps.tolist(), starts.tolist()))
        return ratio_interval(*sums, steps=steps, starts=starts, **rest)

    monkeypatch.setattr(noise, "ratio_interval", recorded)
    pooled_ratio([np.ones((2, 400)), np.ones((2, 5))])
    ((steps, starts),) = seen
    assert steps == [*[2.0] * 200, 2.0, 2.0, 1.0]
    assert [at for at, begins in enumerate(starts) if begins] == [0, 200]


def test_exponent_two_squares_the_ratio_of_means() -> None:
    window = np.array([[2.0], [6.0]]) * (1 + 0.1 * np.random.default_rng(0).standard_normal((2, 100)))
    plain, squared = pooled_ratio([window]), pooled_ratio([window], exponent=2)
    assert squared.value == pytest.approx(plain.value**2)
    assert squared.interval == (pytest.approx(plain.interval[0] ** 2), pytest.approx(plain.interval[1] ** 2))


def test_a_denominator_near_zero_leaves_the_upper_end_open() -> None:
    rng = np.random.default_rng(0)
    window = np.stack([0.05 + rng.standard_normal(100), np.full(100, 10.0)])
    found = pooled_ratio([window])
    assert found.value is not None
    assert found.interval[1] is None


def test_matched_is_measured_beside_plain(tmp_path: Path) -> None:
    truth = Truth(geometry="l1", own_signal=2.0, own_noise=9.0)
    found = measure([folder(tmp_path, seed=seed, truth=truth) for seed in range(3)], [400.0] * 3, 8)
    assert (found.euclidean, found.geometry) == (geometry_columns("l2"), geometry_columns("l1"))
    factor = 1 + found.summary.value / 8
    assert found.matched.value == pytest.approx((9 / 2) ** 2 * factor, rel=0.05)
    low, high = found.matched.interval
    assert low < found.matched.value < high
    # as wide as the interval of the factor, which is that of the plain noise scale, and a little wider
    spread = math.log((1 + found.summary.interval[1] / 8) / factor)
    assert spread < math.log(high / found.matched.value) < spread + 0.1
    trajectory = found.trajectory
    factors = 1 + trajectory["simple_noise_scale"] / 8
    assert (trajectory["matched_noise_scale"] / factors).to_numpy() == pytest.approx(4.5**2, rel=0.2)
    assert (
        found.summary
        == measure([folder(tmp_path / "plain", seed=s, truth=Truth()) for s in range(3)], [400.0] * 3, 8).summary
    )


def test_moments_that_were_not_measured_on_every_step(tmp_path: Path) -> None:
    """Every fifth step: NaN in between says nothing about the rest."""
    path = folder(tmp_path, truth=Truth(geometry="nuclear"))
    result = Store(tmp_path).load(path.name)
    sparse = {
        name: np.where(result.steps["step"] % 5 == 0, column, np.nan) if name.startswith("nuclear") else column
        for name, column in result.steps.items()
    }
    Store(tmp_path).save(dataclasses.replace(result, steps=sparse))
    found = measure([path], [400.0], 8)
    kept = slice(204, 400, 5)
    expected = (result.steps["nuclear_noise"][kept].mean() / result.steps["nuclear_signal"][kept].mean()) ** 2
    assert found.matched.value == pytest.approx(expected * (1 + found.summary.value / 8))


def test_the_correction_needs_the_plain_noise_scale() -> None:
    undefined = NoiseScale(None, note="the mean signal is not positive (-1)")
    found = correct(NoiseScale(20.0, (10.0, 40.0)), undefined, 8)
    assert found.value is None
    assert "not positive" in found.note
    assert correct(undefined, NoiseScale(20.0, (10.0, 40.0)), 8) == undefined


def test_measured_from_disk_over_the_second_half(tmp_path: Path) -> None:
    truth = Truth(grad_sq_norm=0.5, noise_trace=20.0)
    folders = [folder(tmp_path, seed=seed, truth=truth) for seed in range(3)]
    found = measure(folders, [400.0] * 3, 8)
    low, high = found.summary.interval
    assert found.summary.value == pytest.approx(20 / (0.5 * 1.25), rel=0.2)
    assert low < found.summary.value < high
    trajectory = found.trajectory
    assert trajectory["progress"].between(0, 1).all()
    assert trajectory["examples"].iloc[-1] == pytest.approx(400 * 8, rel=0.1)
    assert trajectory["simple_noise_scale"].iloc[-3:].mean() > trajectory["simple_noise_scale"].iloc[:3].mean()


def test_undefined_at_batch_size_one(tmp_path: Path) -> None:
    found = measure([folder(tmp_path, batch_size=1, truth=Truth())], [400.0], 1)
    assert found.summary == found.matched == NoiseScale(None, note="undefined at batch size 1", measured=False)
    assert found.trajectory["simple_noise_scale"].isna().all()


def test_no_probe_no_noise_scale(tmp_path: Path) -> None:
    found = measure([folder(tmp_path)], [400.0], 8)
    assert "no gradient moments" in found.summary.note
    assert len(found.trajectory) == 0


def test_exponent_and_name_are_those_of_the_data(tmp_path: Path) -> None:
    path = folder(tmp_path, truth=Truth(geometry="l1", own_signal=2.0, own_noise=9.0))
    result = Store(tmp_path).load(path.name)
    plain, own = result.geometries
    Store(tmp_path).save(result.replace(geometries=(plain, dataclasses.replace(own, geometry="mine", exponent=1))))
    found = measure([path], [400.0], 8)
    assert found.geometry.geometry == "mine"
    assert found.matched.value == pytest.approx(4.5, rel=0.05)


def scale(value: float | None, measured: bool = True) -> NoiseScale:
    return NoiseScale(value, (1.0, 9.0) if value else (None, None), measured=measured)


def test_the_batch_size_nearest_to_the_critical_one_stands_for_the_optimizer() -> None:
    scales = {2: scale(10.0), 32: scale(30.0), 256: scale(90.0)}
    assert near(scales, 42.0) == scales[32]
    assert near({**scales, 32: scale(None)}, 42.0).value is None
    assert near({1: scale(None, measured=False), 64: scale(5.0)}, 2.0).value == 5.0


def test_without_a_critical_batch_size_the_geometric_mean_stands_in() -> None:
    found = near({2: scale(10.0), 32: scale(40.0), 64: scale(None)}, None)
    assert found.value == pytest.approx(20.0)
    assert found.interval == (None, None)
    assert near({}, None).value is None


def test_a_ratio_holds_both_uncertainties() -> None:
    """Factors of 2 and 1.5 either way: on the log axis the distances add up as squares."""
    found = NoiseScale(30.0, (15.0, 60.0)).over(Quantity(40.0, (40 / 1.5, 60.0)))
    factor = math.exp(math.hypot(math.log(2), math.log(1.5)))
    assert found.value == pytest.approx(0.75)
    assert found.interval == (pytest.approx(0.75 / factor), pytest.approx(0.75 * factor))
    exact = NoiseScale(30.0, (20.0, 50.0)).over(Quantity(40.0, (40.0, 40.0)))
    assert exact.interval == (pytest.approx(0.5), pytest.approx(1.25))


@pytest.mark.parametrize(
    ("given", "critical", "interval", "ends"),
    [
        (NoiseScale(30.0, (15.0, None)), 40.0, (30.0, 50.0), (True, False)),
        (NoiseScale(30.0, (15.0, 60.0)), 40.0, (None, 50.0), (True, False)),
        (NoiseScale(30.0, (15.0, 60.0)), 40.0, (30.0, None), (False, True)),
        (NoiseScale(30.0), 40.0, (30.0, 50.0), (False, False)),
    ],
)
def test_an_end_that_is_open_in_one_is_open_in_the_ratio(
    given: NoiseScale, critical: float, interval: tuple[float | None, float | None], ends: tuple[bool, bool]
) -> None:
    found = given.over(Quantity(critical, interval))
    assert found.value == pytest.approx(0.75)
    assert tuple(end is not None for end in found.interval) == ends


def test_ratio_of_means_not_mean_of_ratios() -> None:
    square = np.array([1.0, 3.0, 1.0, 3.0] * 25)
    trace = np.array([10.0, 10.0, 30.0, 30.0] * 25)
    assert pooled_ratio([np.stack([square, trace])]).value == pytest.approx(20.0 / 2.0)
    assert np.mean(trace / square) != pytest.approx(10.0)


def test_the_ratio_covers() -> None:
    """1000 draws of two independent normal logarithms: at 95 % the chance of fewer than 929 hits is 0.002."""
    rng = np.random.default_rng(0)
    hits = 0
    for own, other in np.exp(rng.standard_normal((1000, 2)) * [0.3, 0.15]):
        half, quarter = math.exp(1.96 * 0.3), math.exp(1.96 * 0.15)
        critical = Quantity(other, (other / quarter, other * quarter))
        low, high = NoiseScale(own, (own / half, own * half)).over(critical).interval
        hits += low <= 1.0 <= high
    assert 929 <= hits <= 968
