"""Kaplan's three terms fitted to steps to targets, where the losses are exact and the steps have the noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.forms import LossRuns
from analysis.estimate.laws.loss import fit
from analysis.questions.scale.answer import _off
from tests.references.power_law import steps_to_loss

TRUTH = {"E": 1.2, "N_c": 2e4, "alpha_N": 0.3, "S_c": 3000.0, "alpha_S": 0.7, "B_star": 1000.0, "alpha_B": 0.35}
SIZES, LOSSES = (2e4, 6e4, 2e5, 6e5), (3.6, 3.2, 2.9, 2.7)


def made(
    *, sizes: tuple[float, ...] = SIZES, losses: tuple[float, ...] = LOSSES, noise: float = 0.0, seed: int = 0,
    batch_sizes: tuple[int, ...] = (2, 8, 32, 128, 512), **truth: Any,
) -> LossRuns:  # fmt: skip
    """Steps of every size, batch size and loss; most of the noise is common to the losses of one run."""
    rng, rows = np.random.default_rng(seed), []
    for trial, (size, batch) in enumerate((size, batch) for size in sizes for batch in batch_sizes):
        common = 0.85 * rng.standard_normal()
        for loss in losses:
            steps = steps_to_loss(loss, size, batch, **(TRUTH | truth))
            rows.append((size, loss, batch, steps * np.exp(noise * (common + 0.53 * rng.standard_normal())), trial))
    columns = np.array(rows, dtype=float).T
    names = ("parameters", "loss", "batch_size", "steps", "group")
    return LossRuns(**dict(zip(names, columns, strict=True)))


def test_known_parameters_come_back() -> None:
    law = fit("kaplan", made(), AnalysisConfig(resamples=100))
    assert law.values == {name: pytest.approx(value, rel=1e-4) for name, value in TRUTH.items()}
    assert law.residual_rms < 1e-6


def test_points_count_by_their_seeds() -> None:
    """What has next to none says nothing; how many seeds there are in all does not matter."""
    config, runs = AnalysisConfig(resamples=100), made(noise=0.05)
    wrong = np.arange(len(runs.loss)) % 7 == 3
    off = dataclasses.replace(runs, steps=np.where(wrong, 1.5, 1.0) * runs.steps)
    believed = fit("kaplan", dataclasses.replace(off, weight=np.where(wrong, 1e-9, 2.0)), config)
    without = fit("kaplan", runs.of(~wrong), config)
    assert believed.values == {name: pytest.approx(value, rel=1e-3) for name, value in without.values.items()}
    assert believed.residual_rms == pytest.approx(without.residual_rms, rel=1e-3)
    assert fit("kaplan", dataclasses.replace(runs, weight=np.full(len(wrong), 3.0)), config).at == pytest.approx(
        fit("kaplan", runs, config).at, rel=1e-6
    )


def test_steps_that_follow_another_law_are_said_to_and_the_size_that_does_is_named() -> None:
    config, runs = AnalysisConfig(resamples=100), made()
    assert _off("it", fit("kaplan", runs, config), runs) == []
    tripled = dataclasses.replace(runs, steps=np.where(runs.parameters == SIZES[1], 3.0, 1.0) * runs.steps)
    (said,) = _off("it", fit("kaplan", tripled, config), tripled)
    rms = float(said.split("steps lie ")[1].split(" %")[0])
    assert 15 < rms < 60, "a factor of three, half of which the size term takes up"
    assert "off the law in three terms" in said
    means = dict(each.split(": ") for each in said.split("by size ")[1].split(")")[0].replace(" %", "").split(", "))
    assert max(means, key=lambda size: float(means[size])) == "60,000"


def holds(index: int) -> dict[str, bool]:
    law = fit("kaplan", made(noise=0.05, seed=index), AnalysisConfig(resamples=300, seed=index))
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
