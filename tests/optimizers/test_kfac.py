"""K-FAC against its twin and dense curvature, and that nothing else notices it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs import run_trial
from cbs.optimizers.kfac import KFAC
from cbs.optimizers.problem import ModelFunction, Problem, count_examples, examples, micro_batches
from cbs.optimizers.second_order.kronecker import inverse_of_product, inverse_of_sum
from cbs.optimizers.second_order.layer_uses import is_supported, patches, recorded_uses
from cbs.trial.config import Choice, Schedule, TrialConfig
from cbs.trial.target import Target
from tests.references.kfac import KfacTwin

DOUBLE = torch.float64


class Scale(nn.Module):
    """A gain for each entry: a parameter that is no layer's weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.randn(width, dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        return self.c * x


class Tied(nn.Module):
    """The network of :class:`KfacTwin`."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 3, dtype=DOUBLE)
        self.hidden = nn.Linear(3, 3, dtype=DOUBLE)
        self.scale = Scale(3)
        self.head = nn.Linear(3, 5, bias=False, dtype=DOUBLE)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.scale(torch.tanh(self.hidden(self.tokens(tokens)))))


def squares(outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
    return 0.5 * (outputs - batch[1]).square().flatten(1).sum(1)


def given(outputs: Tensor, batch: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    """The vectors of the curvature are part of the batch."""
    return batch[2]


def signs(outputs: Tensor, batch: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    """For one output, vectors whose square is the Hessian exactly."""
    return torch.randint(0, 2, outputs.shape, generator=generator).to(outputs) * 2 - 1


def problem(model: nn.Module, sample: Callable[..., Tensor] = given, **options: object) -> Problem:
    return Problem(
        model=model,
        outputs=lambda model, batch: model(batch[0]),
        output_losses=squares,
        curvature_sample=sample,
        **options,  # type: ignore[arg-type]
    )


def train(optimizer: KFAC, posed: Problem, batch: tuple[Tensor, ...], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        posed.output_losses(posed.outputs(posed.model, batch), batch).mean().backward()
        optimizer.observe(batch)
        optimizer.step()


def attached(model: nn.Module, posed: Problem, **options: object) -> KFAC:
    optimizer = KFAC(model.parameters(), **options)  # type: ignore[arg-type]
    optimizer.attach(posed)
    return optimizer


def tied_batch() -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor([0, 1, 1, 4, 3, 0, 2]), torch.randn(7, 5, dtype=DOUBLE), torch.randn(7, 5, dtype=DOUBLE)


@pytest.mark.parametrize("kl_clip", [1e6, 1e-4])
def test_agrees_with_its_twin(kl_clip: float) -> None:
    torch.manual_seed(0)
    model, batch = Tied(), tied_batch()
    options = {
        "lr": 0.3,
        "momentum": 0.8,
        "weight_decay": 0.1,
        "damping": 0.05,
        "kl_clip": kl_clip,
        "decay": 0.7,
        "factor_interval": 2,
        "inverse_interval": 3,
    }
    joined = torch.cat([model.hidden.weight, model.hidden.bias[:, None]], 1)
    start = {"E": model.tokens.weight, "W": joined, "c": model.scale.c}
    twin = KfacTwin({name: value.detach().numpy() for name, value in start.items()}, **options)
    optimizer = attached(model, problem(model), **options)
    for _ in range(20):
        train(optimizer, optimizer.problem, batch, 1)
        twin.step(*(part.numpy() for part in batch))
    joined = torch.cat([model.hidden.weight, model.hidden.bias[:, None]], 1)
    for name, value in {"E": model.tokens.weight, "W": joined, "c": model.scale.c}.items():
        # Both are float64; 1e-6 leaves room for the condition of the factors.
        np.testing.assert_allclose(value.detach().numpy(), twin.w[name], rtol=1e-6, atol=1e-9)


def test_one_step_solves_least_squares() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 1, dtype=DOUBLE)
    inputs, targets = torch.randn(40, 6, dtype=DOUBLE) * torch.logspace(-1, 1, 6), torch.randn(40, 1, dtype=DOUBLE)
    optimizer = attached(model, problem(model, signs), lr=1.0, momentum=0.0, damping=1e-24, kl_clip=None)
    train(optimizer, optimizer.problem, (inputs, targets), 1)
    joined = torch.cat([inputs, torch.ones(40, 1, dtype=DOUBLE)], 1)
    best = torch.linalg.lstsq(joined, targets).solution
    # Each factor gets the root of the damping, 1e-12, against eigenvalues from 0.01; the rest is rounding.
    torch.testing.assert_close(torch.cat([model.weight.T, model.bias[None]]), best, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("first", ["matrix", "vector"])
@pytest.mark.parametrize("second", ["matrix", "vector"])
def test_inverses_solve_the_dense_system(first: str, second: str) -> None:
    torch.manual_seed(0)

    def factor(size: int, kind: str) -> Tensor:
        root = torch.randn(size, size + 2, dtype=DOUBLE)
        return root @ root.T if kind == "matrix" else root.square().sum(1)

    def full(one: Tensor) -> Tensor:
        return torch.diag(one) if one.ndim == 1 else one

    def shifted(rows: Tensor, columns: Tensor, damping: float) -> Tensor:
        rows, columns = full(rows), full(columns)
        balance = (rows.trace() / len(rows) / (columns.trace() / len(columns))).sqrt()
        root, eye = damping**0.5, torch.eye
        return torch.kron(
            rows + balance * root * eye(len(rows), dtype=DOUBLE),
            columns + root / balance * eye(len(columns), dtype=DOUBLE),
        )

    one = factor(4, second), factor(3, "matrix")
    two = factor(4, first), factor(3, second)
    v = torch.randn(4, 3, dtype=DOUBLE)
    dense = torch.linalg.solve(shifted(*two, 0.1), v.flatten())
    torch.testing.assert_close(inverse_of_product(two, 0.1)(v).flatten(), dense)
    dense = torch.linalg.solve(torch.kron(full(one[0]), full(one[1])) + shifted(*two, 0.1), v.flatten())
    torch.testing.assert_close(inverse_of_sum(one, two, 0.1)(v).flatten(), dense)


CONVOLUTIONS = [
    nn.Conv1d(2, 3, 4, stride=3, padding=2),
    nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    nn.Conv2d(2, 3, (3, 5), padding="same", dilation=(1, 2)),
    nn.Conv1d(2, 3, 4, padding="same", dilation=1),
    nn.Conv2d(2, 3, 3, padding="valid"),
    nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    nn.Conv3d(2, 3, 2, padding=1),
]


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_patches_are_what_a_kernel_is_multiplied_with(layer: nn.Conv2d) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2, 2, *[7] * len(layer.kernel_size))
    outputs = layer(inputs)
    expected = (patches(layer, inputs) @ layer.weight.flatten(1).T + layer.bias).detach()
    rows = outputs.flatten(2).transpose(1, 2).reshape(-1, 3).detach()
    torch.testing.assert_close(rows, expected)


def test_a_convolution_over_the_whole_input_is_a_linear_layer() -> None:
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(2, 3, 4, dtype=DOUBLE), nn.Linear(32, 3, dtype=DOUBLE)
    with torch.no_grad():
        linear.weight.copy_(convolution.weight.flatten(1))
        linear.bias.copy_(convolution.bias)
    inputs, target, z = torch.randn(8, 2, 4, 4, dtype=DOUBLE), torch.randn(8, 3).double(), torch.randn(8, 3).double()
    one = attached(convolution, problem(convolution))
    train(one, one.problem, (inputs, target[..., None, None], z[..., None, None]), 5)
    other = attached(linear, problem(linear))
    train(other, other.problem, (inputs.flatten(1), target, z), 5)
    torch.testing.assert_close(convolution.weight.flatten(1), linear.weight)
    torch.testing.assert_close(convolution.bias, linear.bias)


class Twice(nn.Module):
    """One layer called twice, its output changed in place in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=DOUBLE)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).relu_())


def test_several_calls_and_changes_in_place_are_seen() -> None:
    torch.manual_seed(0)
    model = Twice()
    optimizer = attached(model, problem(model))
    train(optimizer, optimizer.problem, tuple(torch.randn(3, 4, 3, dtype=DOUBLE).unbind()), 1)
    state = optimizer.state[model.layer.weight]
    assert "diagonal" not in state
    assert state["columns"].shape == (4, 4)
    assert state["columns"][3, 3] == 1.0


def test_weights_whose_uses_are_hidden_have_a_diagonal() -> None:
    torch.manual_seed(0)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.MultiheadAttention(4, 2, batch_first=True, dtype=DOUBLE)
            self.out = nn.Linear(4, 4, dtype=DOUBLE)
            self.also = nn.Linear(4, 4, dtype=DOUBLE)

        def forward(self, x: Tensor) -> Tensor:
            mixed = self.mix(x, x, x, need_weights=False)[0]
            return self.out(self.also(mixed)) + nn.functional.linear(mixed, self.also.weight)

    model = Attention()
    optimizer = attached(model, problem(model))
    train(optimizer, optimizer.problem, tuple(torch.randn(3, 2, 5, 4, dtype=DOUBLE).unbind()), 1)
    diagonal = {name for name, param in model.named_parameters() if "diagonal" in optimizer.state[param]}
    attention = {"mix.in_proj_weight", "mix.in_proj_bias", "mix.out_proj.weight", "mix.out_proj.bias"}
    assert diagonal == {*attention, "also.weight", "also.bias"}


def test_large_sides_have_diagonal_factors() -> None:
    torch.manual_seed(0)
    model, batch = Tied(), tied_batch()
    optimizer = attached(model, problem(model), largest_factor=4)
    train(optimizer, optimizer.problem, batch, 3)
    state = optimizer.state[model.tokens.weight]
    assert state["rows"].shape == state["lookup_rows"].shape == (5,)
    assert state["columns"].shape == (3, 3)


def test_micro_batches_give_the_factors_of_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, dtype=DOUBLE), nn.Tanh(), nn.Linear(4, 3, dtype=DOUBLE))
    batch = tuple(torch.randn(3, 7, 3, dtype=DOUBLE).unbind())
    parted = copy.deepcopy(model)
    for one, size in ((model, None), (parted, 2)):
        posed = problem(one, micro_batch_size=size)
        train(attached(one, posed), posed, batch, 3)
    for one, other in zip(model.parameters(), parted.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_empirical_curvature_is_the_gradients_own() -> None:
    torch.manual_seed(0)
    model, batch = nn.Linear(3, 2, dtype=DOUBLE), (torch.randn(9, 3).double(), torch.randn(9, 2).double())
    residuals = (model(batch[0]) - batch[1]).detach()
    optimizer = attached(model, problem(model), curvature="empirical")
    train(optimizer, optimizer.problem, batch, 1)
    torch.testing.assert_close(optimizer.state[model.weight]["rows"], residuals.T @ residuals / 9)


def test_a_step_respects_the_bound() -> None:
    torch.manual_seed(0)
    model, bound = nn.Linear(4, 1, bias=False, dtype=DOUBLE), 1e-3
    batch = torch.randn(30, 4, dtype=DOUBLE), torch.randn(30, 1, dtype=DOUBLE)
    before = model.weight.detach().clone()
    optimizer = attached(model, problem(model, signs), lr=1.0, momentum=0.0, damping=1e-24, kl_clip=bound)
    train(optimizer, optimizer.problem, batch, 1)
    moved = (model.weight - before).detach()
    curvature = batch[0].T @ batch[0] / 30
    assert float(moved @ curvature @ moved.T) == pytest.approx(bound, rel=1e-6)


def test_hooks_last_for_the_block_and_only_on_the_twin() -> None:
    model = Tied()
    function = ModelFunction(problem(model))
    with recorded_uses(function.twin) as uses:
        function.at(function.values(), tied_batch())
        assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_hooks for module in function.twin.modules())
    assert [type(use.module) for use in uses] == [nn.Embedding, nn.Linear, nn.Linear]
    assert not is_supported(nn.Conv2d(2, 2, 3, groups=2))


def test_gradients_of_the_loop_are_left_alone() -> None:
    torch.manual_seed(0)
    model, batch = Tied(), tied_batch()
    optimizer = attached(model, problem(model))
    calls = []
    for param in model.parameters():
        param.register_hook(lambda gradient: calls.append(gradient.shape))
    squares(model(batch[0]), batch).mean().backward()
    before, seen = [param.grad.clone() for param in model.parameters()], len(calls)
    optimizer.observe(batch)
    optimizer.step()
    assert len(calls) == seen
    for param, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(param.grad, gradient)


def trial(optimizer: str, probe: Choice | None, **changes: object) -> list[float]:
    config = TrialConfig(
        workload=Choice(name="text", options={"context": 4, "layers": 1, "validation_sequences": 32}),
        optimizer=Choice(name=optimizer),
        lr=0.01,
        batch_size=4,
        seed=0,
        target=Target(metric="validation_loss", value=0.1),
        max_steps=6,
        schedule=Schedule(warmup_examples=8),
        probe=probe,
        device="cpu",
        **changes,  # type: ignore[arg-type]
    )
    return [row.value for row in run_trial(config).evaluations]


@pytest.mark.parametrize("optimizer", ["kfac", "gauss_newton", "sophia"])
def test_a_probe_neither_disturbs_nor_is_disturbed(optimizer: str) -> None:
    plain = trial(optimizer, None)
    assert all(np.isfinite(plain))
    # Groups are added up in another order inside the backward pass, so the last bits differ.
    assert trial(optimizer, Choice(name="split", options={"every": 1})) == pytest.approx(plain, rel=1e-4)
    assert trial(optimizer, None, micro_batch_size=3) == pytest.approx(plain, rel=0.1)


def test_compiled_code_is_not_compiled_again() -> None:
    torch.manual_seed(0)
    model, batch, compilations = Tied(), tied_batch(), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Tensor]:
        compilations.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    optimizer = attached(model, problem(model))
    for _ in range(4):
        optimizer.zero_grad()
        squares(compiled(batch[0]), batch).mean().backward()
        optimizer.observe(batch)
        optimizer.step()
    assert len(compilations) == 1


def test_the_twin_is_the_model_in_its_present_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).double()
    batch = (torch.randn(6, 3, dtype=DOUBLE),)
    function = ModelFunction(problem(model))
    model.eval()
    with torch.no_grad():
        model[0].weight.add_(1.0)
        model[2].running_mean.add_(1.0)
    assert torch.equal(function.at(function.values(), batch), model(*batch))
    model[1].train()
    assert not torch.equal(function.at(function.values(), batch), model(*batch))


def test_inputs_by_keyword_are_seen() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3, dtype=DOUBLE)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(input=x)

    model = Keyword()
    optimizer = attached(model, problem(model))
    train(optimizer, optimizer.problem, tuple(torch.randn(3, 4, 3, dtype=DOUBLE).unbind()), 1)
    assert "rows" in optimizer.state[model.layer.weight]


def test_runs_under_autocast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def outputs(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch[0]).float()

    posed = Problem(model=model, outputs=outputs, output_losses=squares, curvature_sample=given)
    optimizer = attached(model, posed)
    train(optimizer, posed, (torch.randn(16, 8), torch.randn(16, 4), torch.randn(16, 4)), 3)
    assert all("rows" in optimizer.state[model[index].weight] for index in (0, 2))


def test_batches_of_any_structure_are_divided() -> None:
    batch = {"x": torch.arange(7), "rest": (torch.arange(14).view(7, 2), "name", torch.tensor(3))}
    assert count_examples(batch) == 7
    parts = list(micro_batches(batch, 3))
    assert [count_examples(part) for part in parts] == [2, 2, 3]
    assert torch.equal(torch.cat([part["x"] for part in parts]), batch["x"])
    chosen = examples(batch, torch.tensor([5, 1]))
    assert chosen["x"].tolist() == [5, 1]
    assert chosen["rest"][1:] == ("name", torch.tensor(3))
    with pytest.raises(ValueError, match="must hold a tensor"):
        count_examples({"x": 1})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("damping", 0.0),
        ("kl_clip", -1.0),
        ("decay", 1.0),
        ("factor_interval", 0),
        ("inverse_interval", True),
        ("largest_factor", 0),
        ("curvature", "exact"),
    ],
)
def test_bad_options_are_named(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        KFAC(nn.Linear(2, 2).parameters(), **{option: value})


def test_says_what_is_missing() -> None:
    optimizer = KFAC(nn.Linear(2, 2).parameters())
    with pytest.raises(RuntimeError, match="KFAC needs the batch of the step"):
        optimizer.step()
    optimizer.observe(torch.zeros(2))
    with pytest.raises(RuntimeError, match="call attach"):
        optimizer.step()


def test_is_over_the_model_whole() -> None:
    model = Tied()
    optimizer = KFAC(model.hidden.parameters())
    with pytest.raises(ValueError, match="exactly the trainable parameters"):
        optimizer.attach(problem(model))


def test_curvature_that_is_not_finite_gives_no_error() -> None:
    bad = torch.full((3, 3), float("nan"))
    good = torch.eye(3)
    assert inverse_of_product((bad, good), 0.1)(torch.ones(3, 3)).isnan().all()
    assert inverse_of_sum((good, good), (bad, good), 0.1)(torch.ones(3, 3)).isnan().all()
    singular = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) * 1e8
    with pytest.raises(RuntimeError, match="raise damping"):
        inverse_of_product((singular - torch.eye(2), torch.eye(2)), 1e-12)
