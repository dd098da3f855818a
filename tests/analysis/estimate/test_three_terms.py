"""The law of loss in model size, steps and batch size."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.laws import three_term
from analysis.estimate.laws.three_term import Points, fit
from tests.references.power_law import steps_to_loss

TRUTH = {"E": 1.2, "N_c": 2e4, "alpha_N": 0.3, "S_c": 3000.0, "alpha_S": 0.7, "B_star": 1000.0, "alpha_B": 0.35}
SIZES, LOSSES = (2e4, 6e4, 2e5, 6e5), (3.6, 3.2, 2.9, 2.7)


def made(
    *, sizes: tuple[float, ...] = SIZES, losses: tuple[float, ...] = LOSSES, noise: float = 0.0, seed: int = 0,
    batch_sizes: tuple[int, ...] = (2, 8, 32, 128, 512), **truth: Any,
) -> Points:  # fmt: skip
    """Steps of every size, batch size and loss; most of the noise is common to the losses of one run."""
    rng, rows = np.random.default_rng(seed), []
    for trial, (size, batch) in enumerate((size, batch) for size in sizes for batch in batch_sizes):
        common = 0.85 * rng.standard_normal()
        for loss in losses:
            steps = steps_to_loss(loss, size, batch, **(TRUTH | truth))
            rows.append((size, loss, batch, steps * np.exp(noise * (common + 0.53 * rng.standard_normal())), 3, trial))
    columns = np.array(rows, dtype=float).T
    names = ("parameters", "loss", "batch_size", "steps", "seeds", "group")
    return Points(**dict(zip(names, columns, strict=True)))


def test_known_parameters_come_back() -> None:
    law = fit(made(), AnalysisConfig(resamples=100))
    assert law.values == {name: pytest.approx(value, rel=1e-6) for name, value in TRUTH.items()}
    assert law.residual_rms < 1e-9
    assert law.remarks == ()


def test_derivatives_are_those_of_finite_differences() -> None:
    runs = made()
    at = np.array([8.0, 0.3, 6.0, 3.0, -0.2, 0.4, 0.9])
    value, slopes = three_term.log_steps(at, runs, 1e5)
    for index in range(len(at)):
        moved = at.copy()
        moved[index] += 1e-6
        difference = (three_term.log_steps(moved, runs, 1e5)[0] - value) / 1e-6
        assert slopes[:, index] == pytest.approx(difference, rel=1e-3, abs=1e-4)  # first order in the step


def test_two_sizes_drop_the_irreducible_loss() -> None:
    law = fit(made(sizes=SIZES[:2], E=0.0), AnalysisConfig(resamples=100))
    assert "E" not in law.values
    assert "E is dropped" in law.remarks[0]
    assert law.values["alpha_N"] == pytest.approx(0.3, rel=1e-6)


def test_one_size_keeps_its_floor_alone() -> None:
    law = fit(made(sizes=SIZES[:1]), AnalysisConfig(resamples=100))
    assert law.values["E"] == pytest.approx(1.2 + 1.0, rel=1e-6)
    assert "size term is dropped" in law.remarks[0]
    assert set(law.values) == {"E", "S_c", "alpha_S", "B_star", "alpha_B"}


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(ValueError, match="one loss"):
        fit(made(losses=(3.0,)))
    with pytest.raises(ValueError, match="three batch sizes"):
        fit(made(batch_sizes=(2, 64)))


def test_the_size_that_does_not_fit_is_seen() -> None:
    runs = made()
    slow = np.where(runs.parameters == SIZES[1], 1.3, 1.0)
    odd = dataclasses.replace(runs, steps=runs.steps * slow)
    bias = fit(odd, AnalysisConfig(resamples=100)).bias
    assert max(bias, key=lambda size: bias[size]) == SIZES[1]


def test_steps_that_follow_another_law_are_said_to() -> None:
    runs = made()
    assert fit(runs, AnalysisConfig(resamples=100)).remarks == ()
    tripled = np.where(runs.parameters == SIZES[1], 3.0, 1.0) * runs.steps
    (said,) = fit(dataclasses.replace(runs, steps=tripled), AnalysisConfig(resamples=100)).remarks
    assert "% (rms) off the law" in said


def holds(index: int) -> dict[str, bool]:
    law = fit(made(noise=0.05, seed=index), AnalysisConfig(resamples=300, seed=index))
    found = {}
    for name, (low, high) in law.intervals.items():
        found[name] = (low is None or low <= TRUTH[name]) and (high is None or high >= TRUTH[name])
    return found


@pytest.mark.slow
def test_coverage() -> None:
    """80 worlds of four sizes, standard error 2.4 %: 92-98 % for every parameter, two standard errors allowed."""
    hits = [holds(index) for index in range(80)]
    for name in TRUTH:
        assert 0.92 - 0.048 <= np.mean([hit[name] for hit in hits]) <= 1.0
