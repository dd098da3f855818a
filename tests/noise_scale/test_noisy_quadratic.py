"""End to end on the noisy quadratic: moments are unbiased, and intervals hold the truth as often as they say.

Every copy of the quadratic is a parameter tensor of its own with noise of its own, so each step of one probe is an
independent look at all of them, and every copy gets an estimate from its own 32 steps. The truth is the closed form; in
geometry ``l1``, whose signal is that of a noisy gradient, its expectation at the batch size; in ``nuclear``, which has
none, the mean of 6,000 independent steps drawn from the distribution of the groups' gradients.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.compute import seeding
from cbs.noise_scale.averages import MomentAverages
from cbs.noise_scale.moments import Moments
from cbs.noise_scale.probe import Probe
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from docs.examples.hessian_noise_scale import hessian_moments
from tests.references import noise_scale as theory

SHAPE = (6, 10)


EXPONENT = {"l2": 1, "preconditioned": 1, "hessian": 1, "l1": 2, "nuclear": 2}


GEOMETRIES = ["l2", "preconditioned", "l1", "nuclear"]


SAMPLES = 6_000


class Copies(nn.Module):
    """Independent noisy quadratics side by side, with a parameter tensor for each."""

    curvature: Tensor

    def __init__(self, thetas: Tensor, curvature: Tensor) -> None:
        super().__init__()
        self.thetas = nn.ParameterList(list(thetas))
        self.register_buffer("curvature", curvature)

    def forward(self, examples: Tensor) -> Tensor:
        """Losses, added up over copies, of examples of shape ``[examples, copies, *SHAPE]``."""
        theta = torch.stack(list(self.thetas))
        return (0.5 * self.curvature * theta.square() + examples * theta).flatten(1).sum(1)


@dataclass(frozen=True)
class Case:
    """What a run is made of. The simple noise scale at the fixed point is 3.8 ``noise`` examples."""

    noise: float
    source: str = "accumulation"
    batch_size: int = 16
    groups: int = 2
    steps: int = 32
    copies: int = 300

    def quadratic(self) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters, curvatures and variances of the workload, as matrices."""
        options = {"dimension": math.prod(SHAPE), "noise": self.noise}
        with seeding.seeded(0, "init"):
            model = build_workload(Choice(name="noisy_quadratic", options=options)).build_model()
        return model.theta.detach().view(SHAPE), model.curvature.view(SHAPE), model.noise.view(SHAPE)

    def batches(self) -> Iterator[Tensor]:
        """Endless batches of examples for :class:`Copies`."""
        scale, generator = self.quadratic()[2].sqrt(), seeding.generator(0, str(self))
        while True:
            yield scale * torch.randn(self.batch_size, self.copies, *SHAPE, generator=generator)


@dataclass(frozen=True)
class Run:
    """Signals and noises.

    Attributes:
        moments: of every step, shape ``[2, steps, copies]``.
        expected: in the mean over the steps, shape ``[2, copies]``.
        error: of the expectation, relative to the scatter of single steps.
    """

    moments: np.ndarray
    expected: np.ndarray
    error: float = 0.0

    def errors(self) -> np.ndarray:
        """Of the means over everything, in standard errors: of signal and of noise."""
        own = self.moments.mean(axis=1) - self.expected
        variance = own.var(axis=1, ddof=1) / own.shape[1] + self.error**2 * self.moments.var(axis=(1, 2))
        return own.mean(axis=1) / np.sqrt(variance)

    def coverage(self, exponent: int) -> float:
        """Share of the copies whose interval holds the truth; some may get none, and 1 % at most."""
        averages = MomentAverages()
        for signal, noise in self.moments.swapaxes(0, 1):
            averages.add(1, signal, noise)
        hits = []
        for copy, (signal, noise) in enumerate(self.expected.T):
            found = averages.estimate([copy], exponent=exponent)
            if "no interval: only" not in found.note:
                low, high = found.low or 0.0, math.inf if found.high is None else found.high
                hits.append("no positive value" not in found.note and low <= (noise / signal) ** exponent <= high)
        assert len(hits) >= 0.99 * self.expected.shape[1]
        return float(np.mean(hits))


@lru_cache
def at_a_fixed_point(case: Case, geometries: tuple[str, ...]) -> dict[str, Run]:
    """Adam with a learning rate of zero: parameters stay, second moments move on."""
    theta, curvature, variance = case.quadratic()
    model, batches = Copies(theta.repeat(case.copies, 1, 1), curvature), case.batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.99), eps=1e-8, fused=True)
    found: dict[str, list[Moments]] = {name: [] for name in geometries}
    metrics = []
    with Probe(model, optimizer, source=case.source, geometries=[*geometries], parts=case.groups, every=1) as probe:
        with probe.paused():
            for _ in range(5):
                backward(model, next(batches), 1)
                optimizer.step()
                optimizer.zero_grad()
        for _ in range(case.steps):
            backward(model, next(batches), probe.micro_batches)
            for name, moments in (probe.step() or {}).items():
                found[name].append(moments)
            metrics.append(adam_metric(optimizer))
            optimizer.step()
            optimizer.zero_grad()
    gradient, covariance = (curvature * theta).double().numpy(), variance.double().numpy()
    truths: dict[str, Callable[[], list[tuple[float, float]]]] = {
        "l2": lambda: [theory.l2(gradient, covariance)],
        "preconditioned": lambda: [theory.weighted(gradient, covariance, each) for each in np.mean(metrics, axis=0)],
        "l1": lambda: [(theory.l1_signal(gradient, covariance, case.batch_size), theory.l1(gradient, covariance)[1])],
        "nuclear": lambda: [sampled_nuclear(gradient, covariance, case.batch_size, case.groups)],
    }
    return {
        name: Run(
            stacked(found[name]),
            np.broadcast_to(np.transpose(truths[name]()), (2, case.copies)),
            SAMPLES**-0.5 if name == "nuclear" else 0.0,
        )
        for name in geometries
    }


def backward(model: nn.Module, examples: Tensor, micro_batches: int) -> None:
    for part in examples.chunk(micro_batches):
        (model(part).mean() / micro_batches).backward()


def stacked(steps: list[Moments]) -> np.ndarray:
    return np.stack([torch.stack([step.signal, step.noise]).numpy() for step in steps], axis=1)


def adam_metric(optimizer: torch.optim.Optimizer) -> np.ndarray:
    """``1 / (sqrt(v) + eps)`` with the bias-corrected v, shape ``[copies, *SHAPE]``."""
    states = list(optimizer.state.values())
    squares = torch.stack([state["exp_avg_sq"] for state in states]).double()
    return (1 / ((squares / (1 - 0.99 ** states[0]["step"].item())).sqrt() + 1e-8)).numpy()


def sampled_nuclear(gradient: np.ndarray, variance: np.ndarray, batch_size: int, groups: int) -> tuple[float, float]:
    """Mean nuclear norm of the step's gradient and mean trace of the root of the groups' covariance of rows."""
    rng, size = np.random.default_rng(1), batch_size / groups
    means = gradient + np.sqrt(variance / size) * rng.standard_normal((groups, SAMPLES, *SHAPE))
    rest = means - means.mean(axis=0)
    eigenvalues = np.linalg.eigvalsh(np.einsum("gsik,gsjk->sij", rest, rest) * size / (groups - 1))
    singular = np.linalg.svd(means.mean(axis=0), compute_uv=False)
    return float(singular.sum(axis=1).mean()), float(np.sqrt(eigenvalues.clip(min=0.0)).sum(axis=1).mean())


@lru_cache
def weighted_with_the_hessian(case: Case) -> Run:
    theta, curvature, variance = case.quadratic()
    model, batches = Copies(theta.repeat(case.copies, 1, 1), curvature), case.batches()
    steps = [
        hessian_moments(model, lambda batch: model(batch).mean(), next(batches).chunk(case.groups), next(batches)[:1])
        for _ in range(case.steps)
    ]
    truth = theory.weighted(*(entry.double().numpy() for entry in (curvature * theta, variance, curvature)))
    return Run(stacked(steps), np.broadcast_to(np.array(truth)[:, None], (2, case.copies)))


def along_sgd(case: Case, learning_rate: float) -> Run:
    """From parameters of their own; the truth is averaged over the steps."""
    _, curvature, variance = case.quadratic()
    starts = torch.randn(case.copies, *SHAPE, generator=seeding.generator(0, "starts"))
    model, batches = Copies(starts, curvature), case.batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, foreach=True)
    steps, squares = [], torch.zeros(case.copies, *SHAPE, dtype=torch.float64)
    with Probe(model, optimizer, source=case.source, parts=case.groups, every=1) as probe:
        for _ in range(case.steps):
            squares += (curvature * torch.stack(list(model.thetas)).detach()).double().square() / case.steps
            backward(model, next(batches), probe.micro_batches)
            steps.append((probe.step() or {})["l2"])
            optimizer.step()
            optimizer.zero_grad()
    truths = [theory.l2(root_mean_square, variance.double().numpy()) for root_mean_square in squares.sqrt().numpy()]
    return Run(stacked(steps), np.transpose(truths))


# Either end of the noise, and either way to find groups; a third as many looks as in the grid. The first is fast.
FEW = [
    (Case(noise=0.05, source="split", copies=200), ("l2", "preconditioned")),
    (Case(noise=20.0, source="accumulation", copies=200), ("l2", "l1", "nuclear")),
]


GRID = [
    Case(noise=noise, source=source, batch_size=batch_size, groups=groups, copies=600)
    for noise, source, batch_size, groups in (
        (0.05, "per_example", 16, 16),
        (0.05, "split", 64, 2),
        (1.0, "split", 16, 2),
        (1.0, "accumulation", 16, 4),
        (20.0, "split", 16, 2),
        (20.0, "per_example", 16, 16),
    )
]


@pytest.mark.parametrize(
    ("case", "geometry"),
    [
        *((FEW[0][0], geometry) for geometry in FEW[0][1]),
        *(pytest.param(FEW[1][0], geometry, marks=pytest.mark.slow) for geometry in FEW[1][1]),
        *(pytest.param(case, geometry, marks=pytest.mark.slow) for case in GRID for geometry in EXPONENT),
    ],
    ids=str,
)
def test_moments_and_intervals(case: Case, geometry: str) -> None:
    """Means over 6400 looks or more within four standard errors. Of 600 intervals, 95 % hold the truth with a binomial
    standard error of 0.9 %: 91 and 98 % are 4.5 and 3.4 of them away, and of 200 they are 2.6 and 1.9. Intervals too
    short by a quarter would hold it in 88 %.

    The curvature leaves few coordinates that count, and with two groups their variances are so skewed that 92.8 % hold
    the truth where the signal scatters less (measured of 36,000): 89 % is 2.5 standard errors below that.
    """
    looked_at = tuple(name for name in GEOMETRIES if name in dict(FEW).get(case, GEOMETRIES))
    run = weighted_with_the_hessian(case) if geometry == "hessian" else at_a_fixed_point(case, looked_at)[geometry]
    assert (np.abs(run.errors()) < 4).all()
    skewed = geometry == "hessian" and case.groups == 2 and case.noise < 20
    assert (0.89 if skewed else 0.91) <= run.coverage(EXPONENT[geometry]) <= 0.98


@pytest.mark.parametrize(
    ("noise", "learning_rate", "steps"),
    [
        pytest.param(1.0, 0.0075, 100, marks=pytest.mark.slow),
        pytest.param(0.05, 0.003, 200, marks=pytest.mark.slow),
        pytest.param(1.0, 0.003, 300, marks=pytest.mark.slow),
        pytest.param(20.0, 0.01, 400, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_moments_and_intervals_along_sgd(noise: float, learning_rate: float, steps: int) -> None:
    """200 runs, binomial standard error 1.5 %. Signals fall to a half or a third, at the largest noise to a fourteenth.
    Where they fall as far among quieter steps, intervals are too wide or not given."""
    run = along_sgd(Case(noise=noise, steps=steps, copies=200), learning_rate)
    assert (np.abs(run.errors()) < 4).all()
    assert 0.90 <= run.coverage(1) <= 0.99
