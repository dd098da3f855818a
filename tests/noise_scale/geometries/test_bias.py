"""What estimates expect to read at a fixed point: the truth where they are unbiased, the stated closed form elsewhere.

The groups' mean gradients are drawn from their own distribution, N(G, diag(c)/b).
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi
from torch import nn

from cbs.noise_scale.geometries import GEOMETRIES, Geometry
from cbs.noise_scale.geometries.norms import root_shrinkage
from cbs.noise_scale.interval import correction
from cbs.noise_scale.moments import Sizes
from tests.references import noise_scale as theory

NOISE = pytest.mark.parametrize("noise", [0.05, 50.0])
EITHER = pytest.mark.parametrize("sizes", [[1, 1], [4] * 8, [1, 7], [1, 2, 3, 4, 5, 6, 7, 8]], ids=str)
SHAPE = (6, 10)
CURVATURE = np.arange(1, 61).reshape(SHAPE) ** -1.0
GRADIENT = CURVATURE * np.random.default_rng(0).standard_normal(SHAPE)


def adam() -> tuple[nn.Parameter, torch.optim.Optimizer]:
    torch.manual_seed(1)
    parameter = nn.Parameter(torch.zeros(SHAPE, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter])
    for _ in range(3):
        parameter.grad = torch.randn_like(parameter) * torch.from_numpy(CURVATURE)
        optimizer.step()
    return parameter, optimizer


def metric(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> np.ndarray:
    square = optimizer.state[parameter]["exp_avg_sq"] / (1 - 0.999**3)
    return (1.0 / (square.sqrt() + 1e-8)).numpy()


def draw(
    geometry: Geometry, gradient: np.ndarray, variance: np.ndarray, sizes: list[int], draws: int = 500
) -> np.ndarray:
    """Signal and noise of independent steps, shape ``[draws, 2]``."""
    generator = torch.Generator().manual_seed(sum(sizes))
    size = torch.tensor(sizes, dtype=torch.float64).view(-1, 1, 1)
    center, spread = torch.from_numpy(gradient), torch.from_numpy(np.sqrt(variance)) / size.sqrt()
    found = []
    for _ in range(draws):
        groups = center + spread * torch.randn(spread.shape, generator=generator, dtype=torch.float64)
        big = geometry.statistic(0, (size * groups).sum(0, keepdim=True) / size.sum())
        # T is quadratic: the root of a weight goes into the gradient
        small = geometry.statistic(0, (size / size.sum()).sqrt() * groups)
        signal, noise = geometry.read(
            [small], [big], Sizes(small=sum(sizes) / len(sizes), big=sum(sizes), groups=len(sizes))
        )
        found.append((signal.item(), noise.item()))
    return np.array(found)


def bound(name: str, shape: tuple[int, ...] = SHAPE) -> Geometry:
    geometry = GEOMETRIES[name]()
    geometry.bind([nn.Parameter(torch.zeros(shape))], None)
    return geometry


def agrees(found: np.ndarray, truth: float) -> bool:
    """Within four standard errors: a right estimate fails once in 16,000 comparisons."""
    return abs(found.mean() - truth) < 4 * found.std(ddof=1) / math.sqrt(len(found))


@NOISE
@pytest.mark.parametrize("sizes", [[1, 1], [1, 2, 3, 4, 5, 6, 7, 8]], ids=str)
@pytest.mark.parametrize("name", ["l2", "preconditioned"])
def test_quadratic_geometries_are_unbiased(name: str, noise: float, sizes: list[int]) -> None:
    variance = noise * CURVATURE
    parameter, optimizer = adam()
    geometry = GEOMETRIES[name]()
    geometry.bind([parameter], optimizer)
    found = draw(geometry, GRADIENT, variance, sizes)
    weights = metric(parameter, optimizer)
    signal, trace = theory.l2(GRADIENT, variance) if name == "l2" else theory.weighted(GRADIENT, variance, weights)
    assert agrees(found[:, 0], signal)
    assert agrees(found[:, 1], trace)


@NOISE
@EITHER
def test_l1_signal_is_that_of_folded_normals_and_its_noise_unbiased_for_equal_groups(
    noise: float, sizes: list[int]
) -> None:
    variance = noise * CURVATURE
    found = draw(bound("l1"), GRADIENT, variance, sizes)
    assert agrees(found[:, 0], theory.l1_signal(GRADIENT, variance, sum(sizes)))
    if len({*sizes}) == 1:
        assert agrees(found[:, 1], theory.l1(GRADIENT, variance)[1])


def test_correction_recovers_l1_of_a_gaussian_gradient() -> None:
    shape = (60, 100)
    gradient = np.random.default_rng(1).standard_normal(shape)
    truth = np.divide(*reversed(theory.l1(gradient, 30.0 * np.ones(shape)))) ** 2
    for size in (1, 4, 32):
        found = {
            name: draw(bound(name, shape), gradient, 30.0 * np.ones(shape), [size] * 4, draws=200).mean(0)
            for name in ("l1", "l2")
        }
        simple = found["l2"][1] / found["l2"][0]
        raw = (found["l1"][1] / found["l1"][0]) ** 2
        # 6000 entries are a Gaussian to 1 %, and the mean of |G|^2 known to some percent at the smallest size
        assert raw * correction(simple, (None, None), 4 * size)[0] == pytest.approx(truth, rel=0.1)
        assert raw < 0.85 * truth


@pytest.mark.parametrize("groups", [2, 3, 4, 8, 100])
def test_root_shrinkage_is_the_mean_of_a_chi_variable(groups: int) -> None:
    assert root_shrinkage(groups) == pytest.approx(chi(groups - 1).mean() / math.sqrt(groups - 1), rel=1e-9)


@pytest.mark.parametrize(("shape", "groups"), [((40, 40), 2), ((40, 120), 4), ((120, 40), 8)], ids=str)
def test_nuclear_noise_reads_low_by_its_closed_form(shape: tuple[int, int], groups: int) -> None:
    gradient, variance = np.random.default_rng(0).standard_normal(shape), np.ones(shape)
    found = draw(bound("nuclear", shape), gradient, variance, [3] * groups, draws=150)[:, 1].mean()
    factor = theory.root_shrinkage(min(shape) / (max(shape) * (groups - 1)))
    # the limit of large matrices is too large by up to 0.16/40 = 0.4 %, and 150 draws are off by 0.1 %
    assert found == pytest.approx(factor * theory.nuclear(gradient, variance)[1], rel=6e-3)


@pytest.mark.parametrize("shape", [(40, 40), (40, 120)], ids=str)
def test_nuclear_signal_of_noise_alone_has_its_closed_form(shape: tuple[int, int]) -> None:
    found = draw(bound("nuclear", shape), np.zeros(shape), 2.0 * np.ones(shape), [3, 3], draws=150)[:, 0].mean()
    assert found == pytest.approx(theory.nuclear_signal_of_noise(shape, 2.0, 6), rel=6e-3)
