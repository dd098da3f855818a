from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.base import vector
from cbs.noise_scale.layers import copies, linear
from cbs.noise_scale.layers.copies import COPIED_BYTES, MOST_COPIES, few_copies
from cbs.noise_scale.passes import first_dimension
from cbs.noise_scale.sources import SOURCES
from tests.references.per_example import (
    Euclidean,
    assert_exact,
    assert_near,
    group_gradients,
    neighbours,
    small_statistics,
    watch,
)

RTOL = 1e-11
"""Double precision leaves rounding of sums of some hundred products."""


class Model(nn.Module):
    """Every kind that takes copies: a table used as the head too, positions that are the same for all examples, biases,
    and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Embedding(6, 8)
        self.norm = nn.LayerNorm(8)
        self.inner = nn.Linear(8, 8)
        self.root = nn.RMSNorm(8)
        self.plain = nn.LayerNorm(8, bias=False)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def features(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])
        for norm in (self.norm, self.root):
            x = x + self.inner(norm(x)).tanh()
        return self.plain(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.features(ids))


def build(model: type[Model] = Model) -> Model:
    torch.manual_seed(0)
    return model().double()


def ids(examples: int = 6) -> Tensor:
    return torch.randint(11, (examples, 6), generator=torch.Generator().manual_seed(1))


def losses(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean((1, 2)) / len(batch)


def after_a_first_pass(model: nn.Module, batch: Tensor) -> object:
    """A source that has seen one pass, from which on layers take copies."""
    watcher = watch(model)
    losses(model, batch).sum().backward()
    watcher.collect()
    model.zero_grad()
    return watcher


def wanted(model: nn.Module, batch: Tensor) -> Tensor:
    groups = neighbours(len(batch), 2)
    slow = group_gradients(model, lambda: losses(model, batch), groups)
    return torch.stack(small_statistics(slow, groups, lambda gradient: gradient.square().sum()))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of linear layers that took copies."""
    names: list[str] = []
    real = linear.Linear.by_group

    def by_group(self: linear.Linear, *args: object) -> Tensor:
        names.append(self.name)
        return real(self, *args)

    monkeypatch.setattr(linear.Linear, "by_group", by_group)
    return names


@pytest.mark.parametrize("groups", [2, 3])
def test_every_kind_that_takes_copies(groups: int, taken: list[str]) -> None:
    assert_exact(build(), lambda model: losses(model, ids()), source="split", groups=groups, rtol=RTOL)
    assert taken == 2 * ["inner", "inner", "head"]


def test_examples_of_a_small_batch_are_groups(taken: list[str]) -> None:
    assert_exact(build(), lambda model: losses(model, ids(4)), source="per_example", rtol=RTOL)
    assert taken


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.inner.bias.requires_grad_(False),
        lambda model: model.norm.bias.requires_grad_(False),
        lambda model: setattr(model.tokens, "padding_idx", 3),
        lambda model: setattr(model, "inner", nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 8))),
    ],
    ids=["frozen bias", "frozen norm bias", "padding beside a tied head", "nested"],
)
def test_layers_with_copies_beside_layers_without(change: Callable[[Model], object], taken: list[str]) -> None:
    model = Model()
    change(model)
    assert_exact(model.double(), lambda model: losses(model, ids()), source="split", rtol=RTOL)
    assert "head" in taken


def test_a_layer_with_copies_and_one_of_another_kind_share_a_parameter(taken: list[str]) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4, bias=False)
            self.other = nn.Bilinear(1, 3, 4, bias=False)
            self.other.weight = nn.Parameter(self.linear.weight.detach()[:, None].clone())
            self.convolution = nn.Conv1d(2, 3, 1)
            self.norm = nn.LayerNorm(3)
            self.norm.bias = self.convolution.bias

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.convolution(x).mT) @ self.linear.weight.detach().mT + self.linear(
                self.norm(self.convolution(x.flip(2)).mT)
            )

    torch.manual_seed(0)
    x = torch.randn(6, 2, 5).double()
    assert_exact(Shared().double(), lambda model: losses(model, x), source="split", rtol=RTOL)
    assert taken


def test_uneven_groups_take_none(taken: list[str]) -> None:
    assert_exact(build(), lambda model: losses(model, ids(7)), source="split", rtol=RTOL)
    assert not taken


def test_few_and_small_enough() -> None:
    parameters = [torch.empty(COPIED_BYTES // 16)]
    assert few_copies(MOST_COPIES, parameters)
    assert few_copies(2, parameters)
    assert not few_copies(MOST_COPIES + 1, parameters)
    assert not few_copies(1, parameters)
    assert not few_copies(MOST_COPIES, [*parameters, torch.empty(1)])
    assert not few_copies(2, [torch.empty(4, dtype=torch.bfloat16)])
    assert not few_copies(2, [])


def test_no_copies_where_ranks_communicate(monkeypatch: pytest.MonkeyPatch, taken: list[str]) -> None:
    monkeypatch.setattr("cbs.noise_scale.layers.backward.initialized", lambda: True)
    assert_exact(build(), lambda model: losses(model, ids()), source="split", rtol=RTOL)
    assert not taken


def test_recomputed_activations_beside_copies(taken: list[str]) -> None:
    class Checkpointed(Model):
        def features(self, ids: Tensor) -> Tensor:
            x = self.norm(self.tokens(ids))
            return self.root(x + checkpoint(self.inner, x, use_reentrant=False))

    model, batch = build(Checkpointed), ids()
    watcher = after_a_first_pass(model, batch)
    first, second = losses(model, batch).sum(), losses(model, ids(4)).sum()
    first.backward()
    second.backward()
    small = watcher.collect()
    watcher.detach()
    expected = sum(wanted(model, part) / len(part) for part in (batch, ids(4))) * 10
    assert_near(vector(small.statistics[0]), expected, RTOL)
    assert set(taken) == {"head"}


def test_a_parameter_used_outside_its_layer_from_the_second_pass_on_is_an_error() -> None:
    model, batch = build(), ids()
    watcher = after_a_first_pass(model, batch)
    with pytest.raises(ConfigError, match=r"'inner\.weight'.*used outside"):
        (losses(model, batch).sum() + model.inner.weight.square().sum()).backward()
    watcher.detach()


def test_two_backward_passes_after_a_pass_with_copies_are_an_error() -> None:
    model, batch = build(), ids()
    after_a_first_pass(model, batch)
    loss = losses(model, batch).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(ConfigError, match="two backward passes"):
        loss.backward()


def test_second_derivatives_of_a_pass_with_copies_are_an_error() -> None:
    model, batch = build(), ids()
    after_a_first_pass(model, batch)
    with pytest.raises(ConfigError, match="create_graph=True"):
        torch.autograd.grad(losses(model, batch).sum(), list(model.parameters()), create_graph=True)


class Branch(Model):
    inner_wanted = True

    def features(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return self.inner(x) if self.inner_wanted else x


def test_a_parameter_that_a_pass_does_not_use_has_no_gradient(taken: list[str]) -> None:
    model, batch = build(Branch), ids()
    watcher = after_a_first_pass(model, batch)
    model.inner_wanted = False
    losses(model, batch).sum().backward()
    assert model.inner.weight.grad is None
    assert model.tokens.weight.grad is not None
    assert_near(vector(watcher.collect().statistics[0]), wanted(model, batch), RTOL)
    assert "inner" not in taken[2:]


def test_operations_in_place_on_an_output(taken: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(inplace=True), nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Linear(4, 2, bias=False)
    ).double()
    x = torch.randn(6, 5, 3).double()
    assert_exact(model, lambda model: losses(model, x), source="split", rtol=RTOL)
    assert taken


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_others_are_not_called_for_a_parameter_that_is_not_used(register: str, taken: list[str]) -> None:
    model, batch = build(Branch), ids()
    after_a_first_pass(model, batch)
    model.inner_wanted = False
    seen: list[Tensor | None] = []
    getattr(model.inner.weight, register)(seen.append)
    losses(model, batch).sum().backward()
    assert not seen
    assert taken == ["inner", "head"]  # of the first pass


def test_rows_that_the_examples_do_not_divide_are_an_error_in_later_passes_too() -> None:
    class Odd(Model):
        rows = 6

        def features(self, ids: Tensor) -> Tensor:
            return self.inner(self.tokens(ids)[: self.rows])

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.features(ids)).sum(0, keepdim=True).expand(len(ids), -1, -1)

    model, batch = build(Odd), ids()
    parameters = list(model.parameters())
    watcher = SOURCES["split"](model, parameters, [Euclidean()], groups=2, count=first_dimension)
    watcher.attach()
    watcher._recorder.checked = True
    model.rows = 5
    with pytest.raises(ConfigError, match="an output has 5 rows for 6 examples"):
        losses(model, batch).sum().backward()


def test_under_autocast(taken: list[str]) -> None:
    model, plain, batch = build().float(), build().float(), ids()
    watcher = after_a_first_pass(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        found, other = losses(model, batch).sum(), losses(plain, batch).sum()
    found.backward()
    other.backward()
    assert taken
    # Activations and their gradients are rounded at other places: some ten roundings.
    rounding = 10 * torch.finfo(torch.bfloat16).eps
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad.dtype is torch.float32
        assert_near(mine.grad, theirs.grad, rounding)
    assert bool(vector(watcher.collect().statistics[0]).isfinite().all())


def test_a_compiled_model_takes_copies(taken: list[str]) -> None:
    model, batch = build(), ids()
    compiled = torch.compile(model, backend="eager")
    watcher = watch(model)
    for _ in range(2):
        model.zero_grad()
        losses(compiled, batch).sum().backward()
        found = watcher.collect()
    assert taken
    assert_near(vector(found.statistics[0]), wanted(build(), batch), RTOL)


def test_copies_take_no_memory() -> None:
    parameter = torch.zeros(3, 4, requires_grad=True)
    (repeated,) = copies.copies(2, [parameter], lambda place, values: values.sum(0))
    assert repeated.shape == (2, 3, 4)
    assert repeated.data_ptr() == parameter.data_ptr()
    assert repeated.stride(0) == 0
