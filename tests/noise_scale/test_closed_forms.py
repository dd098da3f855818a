"""Closed forms of noise scales against sampling, definitions and scipy."""

import numpy as np
import pytest
import torch
from scipy.special import hyp2f1
from scipy.stats import foldnorm

from cbs.compute import seeding
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from tests.references import noise_scale as theory
from tests.references.quadratic_moments import true_moments

RNG = np.random.default_rng(0)
GRADIENT = RNG.standard_normal((4, 6))
VARIANCE = RNG.gamma(1.0, size=(4, 6))


def test_truths_are_those_of_a_sample() -> None:
    weights = RNG.gamma(1.0, size=(4, 6))
    noise = RNG.standard_normal((200_000, 4, 6)) * np.sqrt(VARIANCE)
    examples = GRADIENT + noise
    mean, deviation = examples.mean(0), examples - examples.mean(0)
    rows = np.einsum("eij,ekj->ik", deviation, deviation) / len(examples)
    root_trace = np.sqrt(np.linalg.eigvalsh(rows)).sum()
    sampled = {
        theory.l2(GRADIENT, VARIANCE): ((mean**2).sum(), (deviation**2).sum() / len(examples)),
        theory.l1(GRADIENT, VARIANCE): (np.abs(mean).sum(), examples.std(0).sum()),
        theory.nuclear(GRADIENT, VARIANCE): (np.linalg.svd(mean)[1].sum(), root_trace),
        theory.nuclear(GRADIENT.T, VARIANCE.T): (np.linalg.svd(mean)[1].sum(), root_trace),
        theory.weighted(GRADIENT, VARIANCE, weights): (
            np.vdot(mean, weights * mean),
            np.vdot(weights, deviation.var(0)),
        ),
    }
    for truth, found in sampled.items():
        # relative errors of 200,000 examples: 1/sqrt(200,000) = 0.2 % for one entry, less for sums of 24
        assert found == pytest.approx(truth, rel=0.01)


def test_l2_is_what_the_workload_says_of_itself() -> None:
    workload = build_workload(Choice(name="noisy_quadratic", options={"dimension": 30, "noise": 2.0}))
    with seeding.seeded(0, "init"):
        model = workload.build_model()
    gradient = (model.curvature * model.theta).detach().double().numpy()
    # the workload multiplies in float64 what is multiplied in float32 here
    assert theory.l2(gradient, model.noise.double().numpy()) == pytest.approx(true_moments(model), rel=1e-6)


@pytest.mark.parametrize("batch_size", [0.01, 1.0, 100.0, 1e6])
def test_l1_signal_is_a_sum_of_folded_normals(batch_size: float) -> None:
    spread = np.sqrt(VARIANCE / batch_size)
    expected = foldnorm.mean(np.abs(GRADIENT) / spread, scale=spread).sum()
    assert theory.l1_signal(GRADIENT, VARIANCE, batch_size) == pytest.approx(expected, rel=1e-9)


def test_l1_signal_without_gradient_or_noise() -> None:
    zero = np.zeros((4, 6))
    assert theory.l1_signal(zero, VARIANCE, 4.0) == pytest.approx(np.sqrt(VARIANCE * 2 / np.pi / 4).sum())
    assert theory.l1_signal(GRADIENT, zero, 4.0) == pytest.approx(np.abs(GRADIENT).sum())
    assert theory.l1_signal(zero, zero, 4.0) == 0.0


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.25, 0.7, 1.0])
def test_root_shrinkage_is_its_hypergeometric_function(ratio: float) -> None:
    # the series is cut at 2000 terms, which fall like the third power at 1
    assert theory.root_shrinkage(ratio) == pytest.approx(hyp2f1(0.5, -0.5, 2.0, ratio), abs=1e-7)


@pytest.mark.parametrize("shape", [(40, 40), (40, 120), (120, 40)])
def test_nuclear_signal_of_noise_is_that_of_gaussian_matrices(shape: tuple[int, int]) -> None:
    draws = torch.randn(200, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sampled = torch.linalg.svdvals(draws * np.sqrt(3.0 / 8.0)).sum(1).mean().item()
    # the limit of large matrices is too large by up to 0.16/40 = 0.4 %; the sampling error is far below
    assert theory.nuclear_signal_of_noise(shape, 3.0, 8.0) == pytest.approx(sampled, rel=5e-3)
