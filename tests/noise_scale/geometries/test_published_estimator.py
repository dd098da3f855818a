"""Ours against the estimators as published (Naganuma et al., arXiv 2602.03001), from the mean gradients of R ranks."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi
from torch import nn

from cbs.noise_scale import GEOMETRIES
from cbs.noise_scale.moments import Sizes

EXAMPLES = 4  # Of a rank

RANKS = pytest.mark.parametrize("ranks", [2, 4, 8])


def gradients(ranks: int, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Mean gradient of every rank, with rows and columns of different sizes."""
    rng = np.random.default_rng(seed)
    sizes = np.outer(np.geomspace(1.0, 30.0, shape[0]), np.geomspace(1.0, 2.0, shape[1]))
    return sizes * (rng.standard_normal(shape) + rng.standard_normal((ranks, *shape)))


def ours(name: str, ranks: np.ndarray) -> tuple[float, float]:
    """Signal and noise of the geometry."""
    geometry = GEOMETRIES[name]()
    geometry.bind([nn.Parameter(torch.zeros(ranks.shape[1:]))], None)
    small = [geometry.statistic(0, torch.from_numpy(ranks)) / len(ranks)]
    big = [geometry.statistic(0, torch.from_numpy(ranks.mean(0))[None])]
    sizes = Sizes(small=EXAMPLES, big=EXAMPLES * len(ranks), groups=len(ranks))
    signal, noise = geometry.read(small, big, sizes)
    return signal.item(), noise.item()


def published(name: str, ranks: np.ndarray, *, columns: bool = False) -> tuple[float, float]:
    """Norm of the mean gradient and of the noise of an example, as the paper writes them; rows unless ``columns``."""
    count, mean = len(ranks), ranks.mean(0)
    batch = EXAMPLES * count
    if name == "l1":
        variance = batch / (count - 1) * ((ranks**2).mean(0) - mean**2)
        return np.abs(mean).sum(), np.sqrt(variance).sum()
    ranks, mean = (ranks.swapaxes(1, 2), mean.T) if columns else (ranks, mean)
    covariance = batch / (count - 1) * (np.mean([g @ g.T for g in ranks], axis=0) - mean @ mean.T)
    noise = np.sqrt(np.maximum(np.linalg.eigvalsh(covariance), 0.0)).sum()
    return np.linalg.svd(mean, compute_uv=False).sum(), noise


@RANKS
def test_l1_differs_by_the_shrinkage_of_a_standard_deviation_alone(ranks: int) -> None:
    given = gradients(ranks, (5, 7))
    (signal, noise), (their_signal, their_noise) = ours("l1", given), published("l1", given)
    c4 = chi(ranks - 1).mean() / math.sqrt(ranks - 1)
    assert signal == pytest.approx(their_signal, rel=1e-12)
    assert (noise / their_noise) ** 2 == pytest.approx(1 / c4**2, rel=1e-9)
    assert 1 / c4**2 == pytest.approx({2: 1.571, 4: 1.178, 8: 1.074}[ranks], abs=5e-4)


@RANKS
@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6)], ids=str)
def test_nuclear_agrees_on_the_smaller_side(ranks: int, shape: tuple[int, int]) -> None:
    given = gradients(ranks, shape)
    columns = shape[0] > shape[1]
    assert ours("nuclear", given) == pytest.approx(published("nuclear", given, columns=columns), rel=1e-6)
