"""The simple noise scale: moments averaged first, divided last, nothing floored."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from analysis.noise import Measured, NoiseScale, measure, near, pooled_ratio
from cbs.config import Choice, TrialConfig
from cbs.errors import ResultsError
from cbs.record import TrialStatus
from cbs.store import Store
from tests.factories import TARGET, Truth, trial


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


def test_ratio_of_means_not_mean_of_ratios() -> None:
    square = np.array([1.0, 3.0, 1.0, 3.0] * 25)
    trace = np.array([10.0, 10.0, 30.0, 30.0] * 25)
    assert pooled_ratio([np.stack([square, trace])]).value == pytest.approx(20.0 / 2.0)
    assert np.mean(trace / square) != pytest.approx(10.0)


def test_steps_of_every_seed_count_alike() -> None:
    short, long = np.ones((2, 10)), np.stack([np.ones(30), np.full(30, 5.0)])
    assert pooled_ratio([short, long]).value == pytest.approx((10 * 1 + 30 * 5) / 40)


@pytest.mark.parametrize(("square", "trace", "which"), [(-1.0, 5.0, r"\|G\|\^2"), (1.0, -5.0, "Sigma")])
def test_a_mean_that_is_not_positive_is_said_not_floored(square: float, trace: float, which: str) -> None:
    found = pooled_ratio([np.stack([np.full(50, square), np.full(50, trace)])])
    assert found.value is None
    assert found.interval == (None, None)
    assert re.search(which, found.note)


def test_the_interval_covers_correlated_noise() -> None:
    """Autocorrelated moments (AR(1), 0.8): 95 % interval over 200 draws."""
    rng = np.random.default_rng(0)
    hits = 0
    for index in range(200):
        noise = rng.standard_normal((2, 900))
        for step in range(1, 900):
            noise[:, step] = 0.8 * noise[:, step - 1] + 0.6 * noise[:, step]
        window = np.array([[1.0], [30.0]]) * (1 + 0.5 * noise)
        low, high = pooled_ratio([window], resamples=400, seed=index).interval
        hits += (low is None or low <= 30) and (high is None or high >= 30)
    assert 0.87 * 200 <= hits <= 200


def test_a_denominator_near_zero_leaves_the_upper_end_open() -> None:
    rng = np.random.default_rng(0)
    window = np.stack([0.05 + rng.standard_normal(100), np.full(100, 10.0)])
    found = pooled_ratio([window])
    assert found.value is not None
    assert found.interval[1] is None


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
    assert found.summary == NoiseScale(None, note="undefined at batch size 1", measured=False)
    assert found.trajectory["simple_noise_scale"].isna().all()


def test_no_probe_no_noise_scale(tmp_path: Path) -> None:
    found = measure([folder(tmp_path)], [400.0], 8)
    assert "no gradient moments" in found.summary.note
    assert len(found.trajectory) == 0


def test_missing_steps_are_a_clear_error(tmp_path: Path) -> None:
    path = folder(tmp_path, truth=Truth())
    (path / "steps.parquet").unlink()
    with pytest.raises(ResultsError, match=r"steps\.parquet"):
        measure([path], [400.0], 8)


def entry(value: float | None, measured: bool = True) -> Measured:
    return Measured(NoiseScale(value, (1.0, 9.0) if value else (None, None), measured=measured), None)


def test_the_batch_size_nearest_to_the_critical_one_stands_for_the_optimizer() -> None:
    measured = {2: entry(10.0), 32: entry(30.0), 256: entry(90.0)}
    assert near(measured, 42.0) == measured[32].summary
    assert near({**measured, 32: entry(None)}, 42.0).value is None
    assert near({1: entry(None, measured=False), 64: entry(5.0)}, 2.0).value == 5.0


def test_without_a_critical_batch_size_the_geometric_mean_stands_in() -> None:
    found = near({2: entry(10.0), 32: entry(40.0), 64: entry(None)}, None)
    assert found.value == pytest.approx(20.0)
    assert found.interval == (None, None)
    assert near({}, None).value is None
