import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cbs.errors import ConfigError
from cbs.noise_scale.moments import Sizes
from cbs.workloads.text_parts.gpt import GPT
from tests.noise_scale.sources.tiny_gpt import RTOL, SHAPE, batch, gpt, losses, norms
from tests.references.per_example import (
    Elementwise,
    Euclidean,
    assert_exact,
    assert_near,
    group_gradients,
    neighbours,
    small_statistics,
    watch,
)

Loss = Callable[[nn.Module], Tensor]


def slow_norms(model: nn.Module, ids: Tensor, groups: list[list[int]], of: Loss | None = None) -> Tensor:
    slow = group_gradients(model, lambda: of(model) if of else losses(model, ids), groups)
    return torch.stack(small_statistics(slow, groups, lambda gradient: gradient.double().square().sum()))


def of_passes(*passes: Tensor, examples: int) -> Tensor:
    """Statistics of a step from those of its passes, each over the examples of the pass: groups weigh by their share of
    the step's examples."""
    return sum(passes) * examples


def assert_close(found: Tensor, wanted: Tensor, rtol: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=0)


@pytest.mark.parametrize("groups", [2, 3, 8])
@pytest.mark.parametrize("geometries", [(Euclidean(),), (Euclidean(), Elementwise())], ids=["norms", "values"])
def test_a_transformer_in_any_number_of_groups(groups: int, geometries: tuple[Euclidean, ...]) -> None:
    ids = batch()

    def of(model: nn.Module) -> Tensor:
        logits = model(ids[:, :-1])
        return nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(1) / len(ids)

    assert_exact(gpt(), of, source="split", groups=groups, rtol=RTOL, geometries=geometries)


def test_an_empty_batch_is_an_error_and_runs() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    watcher = watch(model)
    model(torch.randn(0, 3)).sum().backward()
    assert not model[0].weight.grad.any()
    with pytest.raises(ConfigError, match="no examples"):
        watcher.collect()


def test_groups_of_several_passes_add_up() -> None:
    model, plain = gpt(), gpt()
    first, second = batch(6), batch(10)[6:]
    watcher = watch(model)
    for ids in (first, second):
        (losses(model, ids).sum() / 2).backward()
    small = watcher.collect()
    wanted = of_passes(
        *(
            slow_norms(plain, ids, neighbours(len(ids), 2), lambda model, ids=ids: losses(model, ids) / 2) / len(ids)
            for ids in (first, second)
        ),
        examples=10,
    )
    assert_close(norms(small), wanted, 1e-6)
    assert small.sizes == Sizes(small=10 / 4, big=10, groups=4)
    assert watcher.collect() is None


def test_two_forward_passes_under_one_backward_pass_are_an_error() -> None:
    model = gpt()
    watcher = watch(model)
    (losses(model, batch(4)) + losses(model, batch(4).flip(1))).sum().backward()
    with pytest.raises(ConfigError, match=r"two forward passes under one backward pass.*count="):
        watcher.collect()


def test_many_steps_after_the_first_are_right_too() -> None:
    model, plain = gpt(), gpt()
    watcher = watch(model)
    for _ in range(3):
        model.zero_grad()
        losses(model, batch()).sum().backward()
        found = norms(watcher.collect())
        assert_close(found, slow_norms(plain, batch(), neighbours(8, 2)), 1e-6)
        with torch.no_grad():
            for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
                mine.sub_(mine.grad)
                other.copy_(mine)


def test_gradients_by_autograd_grad() -> None:
    model = gpt()
    watcher = watch(model)
    gradients = torch.autograd.grad(losses(model, batch()).sum(), list(model.parameters()))
    assert len(gradients) == len(list(model.parameters()))
    assert_close(norms(watcher.collect()), slow_norms(gpt(), batch(), neighbours(8, 2)), 1e-6)


def test_activation_checkpointing() -> None:
    class Checkpointed(GPT):
        def forward(self, ids: Tensor) -> Tensor:
            x = (self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])).flatten(0, 1)
            for block in self.blocks:
                x = checkpoint(block, x, len(ids), use_reentrant=False)
            return self.head(self.norm(x)).view(*ids.shape, -1)

    torch.manual_seed(0)
    model = Checkpointed(SHAPE, 11).double()
    watcher = watch(model)
    first, second = losses(model, batch(5)), losses(model, batch(4))
    first.sum().backward()
    second.sum().backward()
    wanted = of_passes(*(slow_norms(gpt(), batch(size), neighbours(size, 2)) / size for size in (5, 4)), examples=9)
    assert_close(norms(watcher.collect()), wanted, 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    model, plain = gpt(torch.float32), gpt(torch.float32)
    watcher = watch(model)

    def of(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype):
            return losses(model, batch(6))

    of(model).sum().backward()
    of(plain).sum().backward()
    # Activations and their gradients are rounded at other places: some ten roundings.
    rounding = 10 * torch.finfo(dtype).eps
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad.dtype is torch.float32
        assert_near(mine.grad, other.grad, rounding)
    found = norms(watcher.collect())
    assert_close(found, slow_norms(plain, batch(6), neighbours(6, 2), of), 2 * rounding)


def test_other_parameters_in_the_place_of_the_watched_ones() -> None:
    model = gpt()
    watcher = watch(model)
    others = {name: (2 * value.detach()).requires_grad_() for name, value in model.named_parameters()}
    output = torch.func.functional_call(model, others, (batch()[:, :-1],))
    output.square().sum().backward()
    assert all(value.grad is not None for value in others.values())
    assert watcher.collect() is None


def test_parameters_in_bfloat16() -> None:
    model, plain = gpt(torch.bfloat16), gpt(torch.bfloat16)
    watcher = watch(model)
    losses(model, batch(6)).sum().backward()
    losses(plain, batch(6)).sum().backward()
    rounding = 10 * torch.finfo(torch.bfloat16).eps
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad.dtype is torch.bfloat16
        assert_near(mine.grad, other.grad, rounding)
    assert_close(norms(watcher.collect()), slow_norms(plain, batch(6), neighbours(6, 2)), 2 * rounding)


@pytest.mark.slow
def test_layers_called_from_compiled_code_are_an_error() -> None:
    torch._dynamo.reset()
    model, plain = gpt(), gpt()
    watcher = watch(model)
    losses(torch.compile(model, backend="eager"), batch()).sum().backward()
    losses(plain, batch()).sum().backward()
    with pytest.raises(ConfigError, match=r"compiled code calls the model.*; use the source 'accumulation'"):
        watcher.collect()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert_near(mine.grad, other.grad, 1e-12)


def test_no_more_groups_than_examples() -> None:
    model = gpt()
    watcher = watch(model, groups=5)
    losses(model, batch(3)).sum().backward()
    small = watcher.collect()
    assert small.sizes == Sizes(small=1.0, big=3, groups=3)


def test_two_forward_passes_of_the_same_examples() -> None:
    def of(model: nn.Module) -> Tensor:
        return losses(model, batch(4)) * losses(model, batch(4).flip(1))

    model, plain = gpt(), gpt()
    watcher = watch(model, count=lambda args, kwargs: 4)
    of(model).sum().backward()
    small = watcher.collect()
    assert_close(norms(small), slow_norms(plain, batch(4), neighbours(4, 2), of), 1e-6)
    assert (small.sizes.groups, small.sizes.big) == (2, 4)


def test_passes_without_gradients_leave_no_trace() -> None:
    model = gpt()
    watcher = watch(model)
    with torch.no_grad():
        quiet = losses(model, batch())
    losses(model, batch(5))
    assert watcher.collect() is None
    losses(model, batch(4)).sum().backward()
    assert watcher.collect().sizes.big == 4
    watcher.detach()
    assert torch.equal(quiet, losses(model, batch()))


def test_backward_within_autocast_keeps_single_precision_where_the_forward_pass_did() -> None:
    model, plain = nn.LayerNorm(4), nn.LayerNorm(4)
    watcher = watch(model)
    x = torch.randn(6, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        model(x).square().sum().backward()
    wanted = slow_norms(plain, x, neighbours(6, 2), lambda model: model(x).square().sum((1, 2)))
    assert_close(norms(watcher.collect()), wanted, 1e-5)


def test_copies_and_checkpoints_of_a_watched_model_are_not_watched() -> None:
    model = gpt()
    keys = list(model.state_dict())
    watcher = watch(model)
    assert list(model.state_dict()) == keys
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    wanted = losses(model, batch()).detach()
    for other in copies:
        assert torch.equal(losses(other, batch()), wanted)
        with torch.no_grad():
            other.tokens.weight.zero_()
            other.blocks[0].mlp_in.weight.zero_()
        changed = losses(other, batch())
        assert not torch.allclose(changed, wanted)
        changed.sum().backward()
        assert other.blocks[0].mlp_in.weight.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert watcher.collect() is None


def test_detaching_leaves_the_model_as_it_was() -> None:
    model = gpt()

    def patched(ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, model.tokens.weight)

    before = [dict(vars(module)) for module in model.modules()]
    watcher = watch(model)
    watcher.detach()
    assert [dict(vars(module)) for module in model.modules()] == before
    model.tokens.forward = patched
    watch(model).detach()
    assert model.tokens.forward is patched
    losses(model, batch()).sum().backward()


def test_several_sources_do_not_see_each_other() -> None:
    model = gpt()
    alone = {}
    for source in ("split", "per_example", "accumulation"):
        watcher = watch(model, source)
        losses(model, batch()).sum().backward()
        alone[source] = norms(watcher.collect())
        watcher.detach()
    together = {source: watch(model, source) for source in alone}
    losses(model, batch()).sum().backward()
    for source, watcher in together.items():
        torch.testing.assert_close(norms(watcher.collect()), alone[source], rtol=RTOL, atol=0)


def test_activations_that_change_in_place() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3, 8, 8).double()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2)).double()
    assert_exact(model, lambda model: model(x).square().sum(1), source="split", groups=4, rtol=RTOL)
