"""Gauss-Newton against dense derivatives and its twin."""

import copy
import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.compute import seeding
from cbs.optimizers.problem import ModelFunction, Problem
from cbs.workloads.text_parts import GPT, GPTShape
from extensions.second_order.optimizers.gauss_newton import (
    FRACTIONS,
    GaussNewton,
    Linearization,
    best_fraction,
    divide,
    full,
    gauss_newton,
    layers,
    mean_loss,
    prox_linear,
)
from extensions.second_order.tests.reference import GaussNewtonTwin, dense, full_gradient
from tests.kinds import kinds

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


def test_the_prox_linear_model_keeps_the_loss() -> None:
    model, batch = network(), data()
    function, displacement = ModelFunction(problem(model)), displaced(model)
    outputs, losses = functions(model, cross_entropy, batch)
    parts = dense(outputs, losses, torch.from_numpy(flat(list(model.parameters()))), range(12))
    moved = torch.from_numpy(parts["y"] + parts["J"] @ flat(displacement)).view(12, 3).requires_grad_()
    (pulled,) = torch.autograd.grad(losses(moved, range(12)).mean(), moved)
    found = Linearization(function, prox_linear, [range(4)]).gradient(batch, displacement)
    np.testing.assert_allclose(flat(found), parts["J"].T @ pulled.flatten().numpy(), rtol=1e-10, atol=1e-13)


def test_both_models_agree_for_squared_loss() -> None:
    model, (inputs, _) = network(), data()
    batch, displacement = (inputs, torch.randn(12, 3, dtype=DOUBLE)), displaced(model)
    function = ModelFunction(problem(model, squares))
    one, other = (
        Linearization(function, kind, [range(4)]).gradient(batch, displacement) for kind in (full, prox_linear)
    )
    np.testing.assert_allclose(flat(one), flat(other), rtol=1e-10, atol=1e-13)


def test_a_layer_sees_the_others_at_the_centre() -> None:
    model, batch = network(), data()
    function, displacement = ModelFunction(problem(model)), displaced(model)
    parts = dense(*functions(model, cross_entropy, batch), torch.from_numpy(flat(list(model.parameters()))), range(12))
    found = Linearization(function, full, [[0, 1], [2, 3]]).gradient(batch, displacement)
    for block in ([0, 1], [2, 3]):
        alone = [one if index in block else torch.zeros_like(one) for index, one in enumerate(displacement)]
        whole = full_gradient(parts, flat(alone))
        start = sum(one.numel() for one in displacement[: block[0]])
        own = flat([found[index] for index in block])
        np.testing.assert_allclose(own, whole[start : start + len(own)], rtol=1e-10, atol=1e-13)


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


def test_a_transformer_is_pushed_forward_and_tied_weights_count_twice() -> None:
    torch.manual_seed(0)
    model = GPT(GPTShape(width=8, layers=1, heads=2, context=4), 16).double()
    function = ModelFunction(problem(model))
    ids = torch.randint(0, 16, (3, 4))
    tangent = displaced(model, 1.0)
    linearization = Linearization(function, full, [range(len(tangent))])
    found = linearization.push((ids,), dict(enumerate(tangent)))
    step = 1e-6
    ends = [
        function.at([c + sign * step * t for c, t in zip(linearization.centre, tangent, strict=True)], (ids,))
        for sign in (1, -1)
    ]
    # Central differences: an error of order (step / 0.02)^2, the embeddings being that small, and 1e-16 / step.
    torch.testing.assert_close(found, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-7)


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


def test_the_fraction_has_the_lowest_loss_on_the_examples() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    function = ModelFunction(problem(model, squares))
    batch = torch.ones(3, 1, dtype=DOUBLE), torch.full((3, 1), 0.5, dtype=DOUBLE)
    zero, one = [torch.zeros(1, 1, dtype=DOUBLE)], [torch.ones(1, 1, dtype=DOUBLE)]
    alpha, point = best_fraction(function, zero, one, batch)
    assert alpha == 0.5
    assert point[0].item() == 0.5
    assert mean_loss(function, zero, batch).item() == pytest.approx(0.125)
    assert best_fraction(function, zero, zero, batch)[0] == 1.0
    nowhere = [torch.full((1, 1), float("nan"), dtype=DOUBLE)]
    assert best_fraction(function, zero, nowhere, batch)[0] == 1.0
    far = [torch.full((1, 1), 1e200, dtype=DOUBLE)]
    assert best_fraction(function, zero, far, batch)[0] == 1.0
    assert FRACTIONS[-1] == 0.25


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


def test_runs_under_autocast() -> None:
    torch.manual_seed(0)
    model = GPT(GPTShape(width=8, layers=1, heads=2, context=4), 16)
    ids = torch.randint(0, 16, (8, 5))

    def outputs(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch[0][:, :-1]).float()

    def losses(outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        found = nn.functional.cross_entropy(outputs.flatten(0, 1), batch[0][:, 1:].flatten(), reduction="none")
        return found.view(len(outputs), -1).mean(1)

    posed = Problem(model=model, outputs=outputs, output_losses=losses, curvature_sample=unused)
    optimizer = gauss_newton(model, 0.02, inner_batch_size=2)
    optimizer.attach(posed)
    start = losses(outputs(model, (ids,)), (ids,)).mean().item()
    for _ in range(10):
        optimizer.observe((ids,))
        optimizer.step()
    assert losses(outputs(model, (ids,)), (ids,)).mean().item() < 0.9 * start


def test_learning_rates_and_gradients_are_as_before() -> None:
    model, batch = network(), data()
    optimizer = gauss_newton(model, 0.02)
    optimizer.attach(problem(model))
    cross_entropy(model(batch[0]), batch).mean().backward()
    gradients = [param.grad.clone() for param in model.parameters()]
    optimizer.observe(batch)
    optimizer.step()
    assert {group["lr"] for group in optimizer.param_groups} == {0.02}
    for param, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(param.grad, gradient)


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


def test_says_what_is_missing() -> None:
    optimizer = gauss_newton(network(), 0.1)
    optimizer.observe(data())
    with pytest.raises(RuntimeError, match="GaussNewton evaluates the model itself: call attach"):
        optimizer.step()


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
