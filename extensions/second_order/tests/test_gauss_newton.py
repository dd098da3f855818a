"""Gauss-Newton against dense derivatives and its twin, and in whole trials."""

import copy
import dataclasses
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis import analyze
from analysis.present.figures import FIGURES
from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.problem import ModelFunction, Problem
from cbs.training.loop import TrainingLoop
from cbs.training.ranks import Ranks
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from cbs.workloads.text_parts import GPT, GPTShape
from extensions.second_order.optimizers.gauss_newton import (
    GaussNewton,
    Linearization,
    divide,
    full,
    gauss_newton,
    layers,
)
from extensions.second_order.tests.reference import GaussNewtonTwin, dense, full_gradient
from sweeps.launching.launch import resolve
from tests.analysis.present.test_style import QUICK, drawn
from tests.factories import Truth, sweep
from tests.kinds import kinds
from tests.sweeps.test_spec import SWEEP
from tests.training.ranks_worker import TEXT as SHARDED
from tests.training.ranks_worker import trial
from tests.training.test_run import config_with
from tests.trial.test_checkpoint import TEXT, assert_resumes_to_the_same_bytes, config

DOUBLE = torch.float64


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def data(examples: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(examples, 3, generator=generator, dtype=DOUBLE)
    return inputs, torch.randint(0, 3, (examples,), generator=generator)


def cross_entropy(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch[1], reduction="none")


def squares(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return 0.5 * (outputs - batch[1]).square().sum(1)


def unused(outputs: Tensor, batch: object, generator: torch.Generator) -> Tensor:
    raise AssertionError("Gauss-Newton draws no vectors")


def problem(model: nn.Module, losses: Callable[..., Tensor] = cross_entropy, **options: object) -> Problem:
    return Problem(
        model=model,
        outputs=lambda model, batch: model(batch[0]),
        output_losses=losses,
        curvature_sample=unused,
        **options,  # type: ignore[arg-type]
    )


def flat(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy()


def displaced(model: nn.Module, size: float = 0.3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [size * torch.randn(param.shape, generator=generator, dtype=DOUBLE) for param in model.parameters()]


def functions(model: nn.Module, losses: Callable[..., Tensor], batch: tuple[Tensor, Tensor]) -> tuple:
    """Outputs and losses of a flat vector and example numbers, as the references take them."""

    def outputs(theta: Tensor, examples: Sequence[int]) -> Tensor:
        values, start = {}, 0
        for name, param in model.named_parameters():
            values[name] = theta[start : start + param.numel()].view(param.shape)
            start += param.numel()
        return torch.func.functional_call(model, values, (batch[0][list(examples)],))

    return outputs, lambda y, examples: losses(y, tuple(part[list(examples)] for part in batch))


@pytest.mark.parametrize("micro_batch_size", [None, 5])
def test_the_gradient_of_the_full_model_is_the_dense_one(micro_batch_size: int | None) -> None:
    model, batch = network(), data()
    function = ModelFunction(problem(model, micro_batch_size=micro_batch_size))
    linearization, displacement = Linearization(function, full, [range(4)]), displaced(model)
    parts = dense(*functions(model, cross_entropy, batch), torch.from_numpy(flat(list(model.parameters()))), range(12))
    found = linearization.gradient(batch, displacement)
    np.testing.assert_allclose(flat(found), full_gradient(parts, flat(displacement)), rtol=1e-10, atol=1e-13)
    at_centre = linearization.gradient(batch, [torch.zeros_like(one) for one in displacement])
    np.testing.assert_allclose(flat(at_centre), parts["J"].T @ parts["g"], rtol=1e-10, atol=1e-13)


def test_layers_are_read_off_names() -> None:
    model = GPT(GPTShape(width=8, layers=2, heads=2, context=4), 16)
    names = [name for name, _ in model.named_parameters()]
    found = [[names[index] for index in block] for block in layers(names)]
    assert [block[0] for block in found] == [
        "tokens.weight",
        "positions.weight",
        "blocks.0.attention_norm.weight",
        "blocks.1.attention_norm.weight",
        "norm.weight",
    ]
    assert all(name.startswith("blocks.0.") for name in found[2])
    assert layers(["weight", "bias"]) == [[0, 1]]
    assert layers(["0.weight", "0.bias", "2.weight"]) == [[0, 1], [2]]


def attached(model: nn.Module, posed: Problem, inner: torch.optim.Optimizer, **options: object) -> GaussNewton:
    optimizer = GaussNewton([inner], **options)  # type: ignore[arg-type]
    optimizer.attach(posed)
    return optimizer


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_agrees_with_its_twin(schedule: str) -> None:
    model, batch = network(), data()
    start = torch.from_numpy(flat(list(model.parameters())))
    twin = GaussNewtonTwin(*functions(model, cross_entropy, batch), start, 2.0, cosine=schedule == "cosine")
    sgd = torch.optim.SGD(model.parameters(), 2.0)
    optimizer = attached(model, problem(model, seed=7), sgd, inner_batch_size=3, inner_schedule=schedule)
    for step in range(20):
        inner, search = divide(12, 3, 0.5, seeding.generator(7, f"examples {step}"))
        twin.step([part.tolist() for part in inner], search.tolist())
        optimizer.observe(batch)
        optimizer.step()
    np.testing.assert_allclose(flat(list(model.parameters())), twin.theta.numpy(), rtol=1e-6, atol=1e-9)
    assert len(set(twin.alphas)) > 1


def test_one_step_minimises_least_squares() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 2, bias=False).double(), torch.randn(1600, 4, dtype=DOUBLE)
    truth = torch.randn(4, 2, dtype=DOUBLE)
    optimizer = gauss_newton(model, 0.1, inner="adamw", inner_batch_size=2, search_share=0.25)
    optimizer.attach(problem(model, squares))
    optimizer.observe((inputs, inputs @ truth))
    optimizer.step()
    # 600 inner steps, of which the last have learning rates close to 0.
    torch.testing.assert_close(model.weight.T, truth, rtol=0.0, atol=1e-3)


@pytest.mark.parametrize(
    ("variant", "inner"), kinds([("layerwise", "muon")], [("full", "muon"), ("prox_linear", "adamw")])
)
def test_every_variant_trains(variant: str, inner: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs = torch.randn(64, 3)
    batch = inputs, inputs.argmax(1)
    optimizer = gauss_newton(model, 0.03, variant=variant, inner=inner)
    optimizer.attach(problem(model))
    for _ in range(30):
        optimizer.observe(batch)
        optimizer.step()
    assert cross_entropy(model(inputs), batch).mean().item() < 0.5  # ln 3 at the start


@pytest.mark.parametrize(
    ("total", "sizes", "searched"), [(256, [8] * 16, 128), (40, [10, 10], 20), (4, [2], 2), (3, [2], 1), (1, [1], 0)]
)
def test_every_example_serves_once(total: int, sizes: list[int], searched: int) -> None:
    inner, search = divide(total, 8, 0.5, torch.Generator().manual_seed(0))
    assert [len(part) for part in inner] == sizes
    assert len(search) == searched
    assert sorted(torch.cat([*inner, search]).tolist()) == list(range(total))


def test_without_search_the_inner_iterate_is_taken_whole() -> None:
    model, batch = network(), data()
    optimizer = attached(
        model, problem(model), torch.optim.SGD(model.parameters(), 0.5, momentum=0.5), search_share=0.0
    )
    optimizer.observe(batch)
    optimizer.step()
    for param in model.parameters():
        assert torch.equal(param, optimizer.state[param]["iterate"])


@pytest.mark.parametrize("reset_start", [False, True])
def test_the_inner_iterate_goes_on_from_before_the_line_search(reset_start: bool) -> None:
    model, batch = network(), data()
    inner = torch.optim.SGD(model.parameters(), 50.0, momentum=0.5)
    optimizer = attached(model, problem(model), inner, reset_start=reset_start)
    optimizer.observe(batch)
    optimizer.step()
    kept = [optimizer.state[param].get("iterate") for param in model.parameters()]
    assert all((value is None) == reset_start for value in kept)
    before = [param.detach().clone() for param in model.parameters()]
    if not reset_start:
        assert not torch.equal(kept[0], before[0])
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.observe(batch)
    optimizer.step()
    for param, start in zip(model.parameters(), before, strict=True):
        assert torch.equal(param, start) == reset_start


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("variant", "exact"),
        ("inner", "sgd"),
        ("inner_batch_size", 0),
        ("inner_batch_size", 2.0),
        ("search_share", 1.0),
        ("inner_schedule", "linear"),
    ],
)
def test_bad_options_are_named(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        gauss_newton(network(), 0.1, **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["full", "layerwise"])
def test_inner_gradients_are_clipped_for_each_inner_optimizer_and_layer(variant: str) -> None:
    model = network()
    params = list(model.parameters())
    seen: list[list[float]] = []
    parts = [torch.optim.SGD(params[:1], lr=0.0), torch.optim.SGD(params[1:], lr=0.0)]

    def norms(*_: object) -> None:
        held = [params[:1], params[1:2], params[2:]] if variant == "layerwise" else [params[:1], params[1:]]
        seen.append([float(torch.cat([param.grad.flatten() for param in group]).norm()) for group in held])

    parts[1].register_step_pre_hook(norms)
    limits = (None, 1e-3)
    for limit in limits:
        optimizer = GaussNewton(parts, variant=variant, inner_clip=limit, search_share=0.0, inner_batch_size=6)
        optimizer.attach(problem(model))
        optimizer.observe(data())
        optimizer.step()
    assert len(seen) == 4
    for free, clipped in zip(seen[:2], seen[2:], strict=True):
        assert min(free) > 1e-2
        # clip_grad_norm_ divides by the norm plus 1e-6.
        assert clipped == pytest.approx([1e-3] * len(clipped), rel=1e-3)
    with pytest.raises(ValueError, match="inner_clip must be None or above 0, got 0"):
        GaussNewton(parts, inner_clip=0.0)


def test_a_copy_keeps_its_options_and_must_be_attached_again() -> None:
    model = network()
    optimizer = gauss_newton(model, 0.01, inner_clip=0.5, variant="layerwise")
    optimizer.attach(problem(model))
    optimizer.observe(data())
    optimizer.step()
    twin = pickle.loads(pickle.dumps(optimizer))
    assert (twin.variant, twin.inner_clip) == ("layerwise", 0.5)
    twin.observe(data())
    with pytest.raises(RuntimeError, match="call attach"):
        twin.step()
    other, again = copy.deepcopy((model, optimizer))
    again.attach(problem(other))
    for its in (optimizer, again):
        its.observe(data())
        its.step()
    for param, value in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(param, value)


NAMES = pytest.mark.parametrize("name", ["gauss_newton", "sophia"])


@NAMES
def test_a_resumed_trial_leaves_the_same_bytes(name: str, tmp_path: Path) -> None:
    assert_resumes_to_the_same_bytes(config(name), build_workload(TEXT), tmp_path, kills=(11,))


def test_gradients_of_its_own_are_not_clipped_in_silence() -> None:
    own = Choice(name="gauss_newton")
    with pytest.raises(ConfigError, match="gradients of its own"):
        run_trial(config_with(clip_norm=1.0, optimizer=own))
    with pytest.raises(ConfigError, match="gradients of its own") as caught:
        resolve(SWEEP.replace(clip_norm=1.0, optimizers=(Choice(name="sgd"), own)))
    assert "\n" not in str(caught.value)


def test_several_workers_are_refused() -> None:
    asked = dataclasses.replace(trial("adamw"), optimizer=Choice(name="sophia"))
    with pytest.raises(ConfigError, match="evaluates the model itself"):
        TrainingLoop(asked, build_workload(SHARDED), torch.device("cpu"), Ranks(0, 2, False))


@NAMES
def test_a_decay_that_is_not_applied_in_every_step_has_no_half_life(name: str) -> None:
    choice = Choice(name=name, options={"beta2_half_life": 8})
    with pytest.raises(ConfigError, match=f"'{name}' has no second moment"):
        build_optimizer(choice, nn.Linear(2, 2), 0.1)
    assert "beta2_half_life" not in OPTIMIZERS[name].options_in_examples


def test_steps_stand_against_both_batch_sizes_of_a_method_with_inner_steps(tmp_path: Path) -> None:
    names = {f"gauss_newton(inner_batch_size={size})": Truth(min_steps=20.0 + size) for size in (8, 32)}
    sweep(tmp_path, names, variants=True, batch_sizes=(64, 256), lrs=(2e-3, 4e-3))
    answers = analyze(tmp_path, QUICK).answers
    kind = FIGURES["inner_batch"]
    table = kind.compute(answers)
    assert len(table) == 2 * 2 * 2
    for panel, own in table.groupby("panel"):
        across, line = ("batch_size", "inner_batch_size")[:: 1 if "total" in panel else -1]
        assert list(own["x"]) == list(own[across])
        assert list(own["line"]) == list(own[line])
    first = table[(table["batch_size"] == 64) & (table["inner_batch_size"] == 8)]
    (eight,) = [answer for answer in answers if answer.group.choice.options["inner_batch_size"] == 8]
    assert set(first["steps"]) == {eight.points[0].steps_to_target}
    assert len(drawn("inner_batch", table).axes) == 2
    assert kind.compute(answers[:1]).empty, "one inner batch size alone"
    sweep(tmp_path / "plain", batch_sizes=(64, 256), lrs=(2e-3, 4e-3))
    assert kind.compute(analyze(tmp_path / "plain", QUICK).answers).empty
