"""What LAMB, LARS and MERIT share: blocks, state, precision, memory, and steps without waiting."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cbs.optimizers import LAMB, MERIT
from cbs.optimizers.lars import LARS
from cbs.optimizers.trust_ratio.blocks import CPU, Extent
from tests.optimizers.trust_ratios import gradients, run, starts

ALL = pytest.mark.parametrize("optimizer_class", [MERIT, LAMB, LARS])
RATES = {MERIT: 0.03, LAMB: 0.03, LARS: 5.0}
NAMES = {MERIT: ["step", "exp_avg", "exp_avg_sq"], LAMB: ["step", "exp_avg", "exp_avg_sq"], LARS: ["momentum_buffer"]}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is updated alone."""
    monkeypatch.setattr("cbs.optimizers.trust_ratio.blocks.CPU", Extent(small=0, shared=4, tile=8))


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        *((kind, {"lr": lr}) for kind, lr in RATES.items()),
        *((kind, {"ratio_from_ndim": 2, "weight_decay": 0.1, "lr": lr}) for kind, lr in RATES.items()),
        *((kind, {"decay_from_ndim": 2, "weight_decay": 0.1, "lr": lr}) for kind, lr in RATES.items()),
        *(
            (MERIT, options)
            for options in ({"variant": "paper"}, {"norm": "l2"}, {"elementwise": False}, {"clip": None})
        ),
        (LARS, {"weight_decay": 0.1, "lr": 0.1}),
    ],
)
def test_tensors_updated_together_come_out_as_alone(optimizer_class: Any, options: dict, request: Any) -> None:
    together = run(optimizer_class, torch.float64, **options)
    request.getfixturevalue("apart")
    alone = run(optimizer_class, torch.float64, **options)
    torch.testing.assert_close(alone, together, rtol=1e-10, atol=1e-13)


@ALL
@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"capturable": True}])
def test_a_tensor_for_a_learning_rate_gives_the_same(optimizer_class: Any, options: dict) -> None:
    lr = RATES[optimizer_class]
    number = run(optimizer_class, torch.float64, lr=lr)
    tensor = run(optimizer_class, torch.float64, lr=torch.tensor(lr, dtype=torch.float64), **options)
    torch.testing.assert_close(tensor, number, rtol=1e-10, atol=1e-13)


class NoWaiting(TorchDispatchMode):
    """Refuses what waits for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default):
            raise RuntimeError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


def large_and_small() -> list[nn.Parameter]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape) * 0.1) for shape in ((700, 600), (8, 4), (4,), (3, 2, 2))]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


@ALL
def test_capturable_steps_do_not_wait_for_the_device(optimizer_class: Any) -> None:
    waiting, free = large_and_small(), large_and_small()
    plain = optimizer_class(waiting, lr=RATES[optimizer_class])
    capturable = optimizer_class(free, lr=torch.tensor(RATES[optimizer_class]), capturable=True)
    for _ in range(3):
        plain.step()
        with NoWaiting():
            capturable.step()
    # A tensor for a learning rate multiplies at another place.
    torch.testing.assert_close(waiting, free, rtol=1e-5, atol=1e-7)


@ALL
def test_capturable_steps_run_on_tensors_without_values(optimizer_class: Any) -> None:
    with FakeTensorMode():
        params = large_and_small()
        optimizer = optimizer_class(params, lr=RATES[optimizer_class], capturable=True)
        for _ in range(3):
            optimizer.step()
        assert [list(state) for state in optimizer.state.values()] == [NAMES[optimizer_class]] * 4


def test_merit_looks_at_values_where_it_may_and_that_pays() -> None:
    params = large_and_small()
    with NoWaiting(), pytest.raises(RuntimeError, match="waits for the device"):
        MERIT(params).step()


def peak_bytes(call: Any) -> int:
    """The largest number of bytes that ``call`` held at a time and had not held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@ALL
@pytest.mark.parametrize(("entries", "options"), [(2**18, {"weight_decay": 0.1}), (2**23, {})])
def test_a_step_holds_a_copy_of_the_largest_tensor_a_tile_and_the_norms(
    optimizer_class: Any, entries: int, options: dict
) -> None:
    weight = nn.Parameter(torch.rand(entries // 1024, 1024))
    weight.grad = torch.rand_like(weight)
    optimizer = optimizer_class([weight], lr=1e-3, **options)
    state = weight.numel() * (1 if optimizer_class is LARS else 2)
    peak = peak_bytes(optimizer.step) / 4 - state
    # The direction and a tile beside it; norms and ratios, of which a handful of vectors are alive.
    lines = weight.shape[0] + weight.shape[1]
    assert peak <= entries + min(entries, CPU.tile) + 20 * lines + 1000
    # The memory stays; a further step takes only vectors as long as there are rows and columns.
    assert peak_bytes(optimizer.step) / 4 <= 20 * lines + 1000


@ALL
def test_lowest_precision_follows_the_float64_run(optimizer_class: Any) -> None:
    exact = run(optimizer_class, torch.float64, lr=RATES[optimizer_class])
    rough = run(optimizer_class, torch.bfloat16, lr=RATES[optimizer_class])
    for one, other in zip(exact, rough, strict=True):
        # Eight roundings of a weight of size up to 6 to 8 bits.
        assert (one - other).abs().max() <= 8 * 2**-8 * (one.abs().max() + 0.1)


@ALL
def test_what_is_loaded_is_a_copy_and_older_groups_get_the_defaults(optimizer_class: Any) -> None:
    weight, other = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer, loaded = optimizer_class([weight], lr=0.1), optimizer_class([other], lr=0.2)
    weight.grad = other.grad = torch.ones(2, 2)
    optimizer.step()
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["ratio_from_ndim"], group["foreach"]
    kept = {name: value.clone() for name, value in optimizer.state[weight].items()}
    saved["state"] = {0: {**saved["state"][0], "step": 1}}
    loaded.load_state_dict(saved)
    assert loaded.param_groups[0]["lr"] == 0.1
    loaded.step()
    assert optimizer_class is LARS or loaded.state[other]["step"] == 2
    assert all(torch.equal(optimizer.state[weight][name], value) for name, value in kept.items())


@ALL
def test_a_change_of_the_exemptions_takes_effect(optimizer_class: Any) -> None:
    vector, twin = (nn.Parameter(torch.tensor([0.1, 0.2])) for _ in range(2))
    vector.grad = twin.grad = torch.tensor([1.0, 2.0])
    one, other = optimizer_class([vector], lr=0.5), optimizer_class([twin], lr=0.5)
    one.step()
    other.step()
    other.param_groups[0]["ratio_from_ndim"] = 2
    one.step()
    other.step()
    assert not torch.allclose(vector, twin, rtol=1e-3)


@ALL
def test_empty_tensors_and_strided_tensors_are_fine(optimizer_class: Any, request: Any) -> None:
    def ends(kernel: Tensor, matrix: Tensor) -> list[Tensor]:
        draw = torch.Generator().manual_seed(1)
        params = [nn.Parameter(kernel), nn.Parameter(matrix), nn.Parameter(torch.empty(0, 3, dtype=torch.float64))]
        optimizer = optimizer_class(params, lr=RATES[optimizer_class], weight_decay=0.1)
        for step in range(3):
            for param in params:
                grad = torch.randn(param.shape, dtype=torch.float64, generator=draw)
                # Gradients may be laid out unlike their weights.
                param.grad = grad if step == 1 else torch.empty_like(param).copy_(grad)
            optimizer.step()
        return [param.detach() for param in params]

    torch.manual_seed(0)
    kernel, matrix = torch.randn(4, 3, 2, 2, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    strided = kernel.to(memory_format=torch.channels_last), matrix.t().contiguous().t()
    whole = ends(kernel.clone(), matrix.clone())
    torch.testing.assert_close(ends(*(one.clone() for one in strided)), whole, rtol=1e-10, atol=1e-13)
    request.getfixturevalue("apart")
    torch.testing.assert_close(ends(*(one.clone() for one in strided)), whole, rtol=1e-10, atol=1e-13)


@ALL
def test_a_gradient_that_is_not_finite_is_not_hidden(optimizer_class: Any) -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    optimizer = optimizer_class([weight])
    weight.grad = torch.zeros(3, 3)
    weight.grad[1, 1] = torch.nan
    optimizer.step()
    assert torch.isnan(weight[1, 1])


@ALL
def test_parameters_without_gradient_are_skipped_and_count_no_steps(optimizer_class) -> None:
    torch.manual_seed(0)
    first, second = (nn.Parameter(torch.randn(3, 3, dtype=torch.float64)) for _ in range(2))
    alone = nn.Parameter(second.detach().clone())
    both, single = optimizer_class([first, second]), optimizer_class([alone])
    start = second.detach().clone()
    # First alone, then second alone, then both: the number of gradients does not tell who has one.
    for step in range(9):
        first.grad = torch.randn(3, 3, dtype=torch.float64) if step % 3 != 1 else None
        second.grad = alone.grad = torch.randn(3, 3, dtype=torch.float64) if step % 3 != 0 else None
        both.step()
        single.step()
        assert step > 0 or torch.equal(second, start)
    # The same arithmetic on slices of longer vectors; vectorised loops may round their tails differently.
    torch.testing.assert_close(second, alone, rtol=1e-13, atol=0.0)


@ALL
def test_bfloat16_weights_have_float32_state_that_survive_a_checkpoint(optimizer_class) -> None:
    def steps(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
        for step in range(first, first + count):
            for param, gradient in zip(params, gradients(8, step), strict=True):
                param.grad = torch.tensor(gradient, dtype=torch.bfloat16)
            optimizer.step()

    params = [nn.Parameter(torch.tensor(start, dtype=torch.bfloat16)) for start in starts(7)]
    optimizer = optimizer_class(params, lr=0.03)
    steps(params, optimizer, 0, 5)
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {torch.float32}
    copies = [nn.Parameter(param.detach().clone()) for param in params]
    resumed = optimizer_class(copies, lr=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    steps(params, optimizer, 5, 5)
    steps(copies, resumed, 5, 5)
    for param, other in zip(params, copies, strict=True):
        assert param.dtype is torch.bfloat16
        assert torch.equal(param, other)


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        (RATES, {"lr": -1.0}, "lr must be finite and at least 0, got -1.0"),
        (RATES, {"ratio_from_ndim": -1}, "ratio_from_ndim must be a whole number of at least 0, got -1"),
        (RATES, {"decay_from_ndim": 0.5}, "decay_from_ndim must be a whole number"),
        ([MERIT, LAMB], {"betas": (0.9, 1.0)}, "betas must be two numbers in"),
        ([MERIT, LAMB], {"betas": (0.9,)}, "betas must be two numbers in"),
        ([MERIT, LAMB], {"eps": -1e-8}, "eps must be"),
        ([LARS], {"momentum": 1.0}, "momentum must be in"),
        ([LARS], {"trust_coefficient": -1.0}, "trust_coefficient must be finite and at least 0, got -1.0"),
        ([LAMB], {"gamma_l": -1.0}, "gamma_l must be finite and at least 0, got -1.0"),
        ([LAMB], {"gamma_l": 1.0, "gamma_u": 0.5}, "gamma_u must be None or at least gamma_l = 1.0, got 0.5"),
        ([MERIT], {"clip": 0.0}, "clip must be None or above 0, got 0.0"),
        ([MERIT], {"variant": "other"}, "variant must be one of code, paper, got 'other'"),
        ([MERIT], {"norm": "l1"}, "norm must be one of max, l2, got 'l1'"),
        ([MERIT], {"elementwise": False, "lower_bound": False}, "leaves no ratio"),
    ],
)
def test_values_outside_their_domain_are_refused(kinds: Any, options: dict, message: str) -> None:
    for kind in kinds:
        with pytest.raises(ValueError, match=message):
            kind([nn.Parameter(torch.ones(1))], **options)
