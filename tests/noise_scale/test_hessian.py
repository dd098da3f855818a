"""Curvature in the noise scale, and closed forms."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import hyp2f1
from scipy.stats import foldnorm
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from cbs.workloads.text_parts.gpt import GPT, SIZES
from docs.examples.hessian_noise_scale import hessian_moments
from tests.kinds import kinds
from tests.references import noise_scale as theory
from tests.references.quadratic_moments import true_moments


def agrees(found: list[float], truth: float) -> bool:
    """Within four standard errors: a right estimate fails once in 16,000 comparisons."""
    return abs(np.mean(found) - truth) < 4 * np.std(found, ddof=1) / math.sqrt(len(found))


@pytest.mark.parametrize("noise", [0.05, 50.0])
@pytest.mark.parametrize("sizes", kinds([[3, 3, 2, 2]], [[1, 1], [1] * 8]), ids=str)
def test_is_unbiased_on_the_noisy_quadratic(sizes: list[int], noise: float) -> None:
    workload = build_workload(Choice(name="noisy_quadratic", options={"dimension": 20, "noise": noise}))
    with seeding.seeded(0, "init"):
        model = workload.build_model()
    stream = workload.training_stream(seeding.generator(0, "data"))
    curvature, variance = (getattr(model, name).double().numpy() for name in ("curvature", "noise"))
    truth = theory.weighted(curvature * model.theta.detach().double().numpy(), variance, curvature)
    steps = [
        hessian_moments(model, lambda batch: model(batch).mean(), stream.next(sum(sizes)).split(sizes), stream.next(1))
        for _ in range(100)
    ]
    assert agrees([step.signal.item() for step in steps], truth[0])
    assert agrees([step.noise.item() for step in steps], truth[1])


def test_is_unbiased_where_the_curvature_is_noisy_and_tied_to_the_gradient() -> None:
    """Loss a/2 theta^2 with a uniform on [0, 2]: gradient a theta, Hessian a; E a = 1, Var a = 1/3."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 3.0)
    generator = torch.Generator().manual_seed(0)

    def batch() -> Tensor:
        return 2 * torch.rand(4, 1, 1, generator=generator, dtype=torch.float64)

    def loss(factors: Tensor) -> Tensor:
        return (0.5 * factors * model.weight.square()).mean()

    steps = [hessian_moments(model, loss, [batch(), batch(), batch()], batch()) for _ in range(600)]
    assert agrees([step.signal.item() for step in steps], 9.0)
    assert agrees([step.noise.item() for step in steps], 3.0)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def loss_of(model: nn.Module) -> Any:
    return lambda batch: model(batch).sin().square().sum(1).mean()


def test_equals_quadratic_forms_of_the_whole_hessian() -> None:
    model = network()
    loss, names = loss_of(model), [name for name, _ in model.named_parameters()]
    groups, curvature, sizes = (
        [torch.randn(size, 3).double() for size in (2, 3, 4)],
        torch.randn(5, 3).double(),
        (2, 3, 4),
    )
    found = hessian_moments(model, loss, groups, curvature)

    def of_parameters(*values: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (curvature,))
        return outputs.sin().square().sum(1).mean()

    blocks = torch.autograd.functional.hessian(of_parameters, tuple(model.parameters()))
    lengths = [parameter.numel() for parameter in model.parameters()]
    hessian = torch.cat(
        [
            torch.cat([b.reshape(m, n) for b, n in zip(row, lengths, strict=True)], 1)
            for row, m in zip(blocks, lengths, strict=True)
        ]
    )

    def gradient(batch: Tensor) -> Tensor:
        return torch.cat([entry.flatten() for entry in torch.autograd.grad(loss(batch), list(model.parameters()))])

    def parts(vector: Tensor) -> Tensor:
        return torch.stack([piece.sum() for piece in (vector * (hessian @ vector)).split(lengths)])

    small = sum(size / 9 * parts(gradient(group)) for size, group in zip(sizes, groups, strict=True))
    big = parts(gradient(torch.cat(groups)))
    inverse_small, inverse_big = 3 / 9, 1 / 9
    slope = (small - big) / (inverse_small - inverse_big)
    torch.testing.assert_close(found.noise, slope)
    torch.testing.assert_close(found.signal, big - slope * inverse_big)
    assert found.indices == (0, 1, 2, 3)
    assert (found.sizes.big, found.sizes.groups) == (9, 3)


def test_a_linear_loss_has_no_curvature() -> None:
    model = nn.Linear(3, 2)
    found = hessian_moments(model, lambda batch: model(batch).mean(), [torch.randn(4, 3)] * 2, torch.randn(4, 3))
    assert not found.signal.any()
    assert not found.noise.any()


def test_parameters_without_gradient_or_training_are_no_trouble() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "unused": nn.Linear(2, 2), "frozen": nn.Linear(3, 1)})
    model["frozen"].requires_grad_(False)
    groups = [torch.randn(4, 3) for _ in range(3)]
    found = hessian_moments(
        model, lambda batch: (model["used"](batch) * model["frozen"](batch)).square().mean(), groups[:2], groups[2]
    )
    assert found.noise.shape == (4,)
    assert not found.noise[2:].any()
    assert found.noise[:2].any()


def test_leaves_the_training_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2)).train()
    loss = loss_of(model)
    loss(torch.randn(8, 3)).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    batches, random = [torch.randn(8, 3) for _ in range(3)], torch.get_rng_state()
    with torch.no_grad():
        found = hessian_moments(model, loss, batches[:2], batches[2])
    assert found.noise.isfinite().all()
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    assert len(gradients) == 6
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


@pytest.mark.parametrize("after", [torch.mean, lambda value: value.square().mean()], ids=["linear", "curved"])
def test_functions_that_hide_their_second_derivative_are_a_config_error(after: Any) -> None:
    model, batch = nn.Linear(3, 1), torch.randn(4, 3)
    with pytest.raises(ConfigError, match="the model has a once_differentiable function"):
        hessian_moments(model, lambda batch: after(Once.apply(model(batch))), [batch, batch], batch)


def test_misuse_is_a_config_error() -> None:
    model, batch = nn.Linear(3, 1), torch.randn(4, 3)

    def loss(batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    with pytest.raises(ConfigError, match="pass two, not 1"):
        hessian_moments(model, loss, [batch], batch)
    with pytest.raises(ConfigError, match="for each of 2 groups"):
        hessian_moments(model, loss, [batch, batch], batch, sizes=[4])
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        hessian_moments(model, loss, [batch, batch], batch)


@pytest.mark.slow
def test_compiled_models_are_a_config_error() -> None:
    model, batch = network().float(), torch.randn(4, 3)
    compiled = torch.compile(model, backend="aot_eager")
    with pytest.raises(ConfigError, match="which compiled models and some kernels do not have"):
        hessian_moments(model, loss_of(compiled), [batch, batch], batch)


RNG = np.random.default_rng(0)


GRADIENT = RNG.standard_normal((4, 6))


VARIANCE = RNG.gamma(1.0, size=(4, 6))


def test_truths_are_those_of_a_sample() -> None:
    draws = np.random.default_rng(1)
    weights = draws.gamma(1.0, size=(4, 6))
    noise = draws.standard_normal((200_000, 4, 6)) * np.sqrt(VARIANCE)
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


def test_negative_curvature_is_reported_as_it_is() -> None:
    model = nn.Linear(3, 1, bias=False)
    groups = [torch.randn(4, 3) for _ in range(2)]
    found = hessian_moments(
        model, lambda batch: (batch @ model.weight.T).mean() - model.weight.square().sum(), groups, groups[0]
    )
    assert found.noise.item() < 0


def test_attention_is_differentiated_twice() -> None:
    torch.manual_seed(0)
    model = GPT(SIZES["30k"], 128).double()
    parameters = list(model.parameters())
    one, other, curvature = (torch.randint(128, (4, 17)) for _ in range(3))

    def loss(batch: Tensor) -> Tensor:
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    found = hessian_moments(model, loss, [one, other], curvature)
    direction = torch.autograd.grad(loss(torch.cat([one, other])), parameters)
    slopes = []
    for step in (1e-4, -1e-4):
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=step)
        slopes.append(torch.autograd.grad(loss(curvature), parameters))
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=-step)
    curvatures = [(g * (up - down)).sum() / 2e-4 for g, up, down in zip(direction, *slopes, strict=True)]
    # central differences: relative errors of 1e-8 by truncation and of 1e-12/1e-4 by rounding
    torch.testing.assert_close(found.signal + found.noise / 8, torch.stack(curvatures), rtol=1e-4, atol=1e-8)


def test_other_errors_pass_through() -> None:
    model, batch = nn.Linear(3, 1), torch.randn(4, 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        hessian_moments(model, lambda batch: model(batch).square().mean(), [batch, batch], torch.randn(4, 5))


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
