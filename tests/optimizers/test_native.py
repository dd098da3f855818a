"""The compiled step of LAMB and MERIT against the portable path and the slow twins, and its build."""

from __future__ import annotations

import math
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.config import Choice
from cbs.errors import MissingDependencyError
from cbs.optimizers import LAMB, MERIT
from cbs.optimizers.base import build_optimizer
from cbs.optimizers.trust_ratio import native
from cbs.optimizers.trust_ratio.blocks import Extent
from tests.optimizers.trust_ratios import STEPS, assert_agrees, beside_twin
from tests.references.lamb import LambTwin
from tests.references.merit import MeritTwin

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, native.COMPILERS)), reason="the machine has no C compiler"
)
TWINS: dict[type, Any] = {MERIT: MeritTwin, LAMB: LambTwin}
BASE = {"lr": 0.03, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.0}
OPTIONS: list[tuple[type, dict[str, Any]]] = [
    (MERIT, {}),
    (MERIT, {"weight_decay": 0.1}),
    (MERIT, {"clip": None}),
    (MERIT, {"clip": 0.1, "bias_correction": True}),
    (MERIT, {"lower_bound": False}),
    (MERIT, {"elementwise": False}),
    (MERIT, {"variant": "paper"}),
    (MERIT, {"variant": "paper", "lower_bound": False, "weight_decay": 0.1}),
    (MERIT, {"ratio_from_ndim": 2, "decay_from_ndim": 2, "weight_decay": 0.1}),
    (LAMB, {}),
    (LAMB, {"bias_correction": False, "weight_decay": 0.1}),
    (LAMB, {"gamma_l": 0.5, "gamma_u": 1.0}),
    (LAMB, {"ratio_from_ndim": 2, "decay_from_ndim": 2, "weight_decay": 0.1}),
]
ALL = pytest.mark.parametrize(("optimizer_class", "options"), OPTIONS, ids=str)
# Of matrices: wide, tall, 1 x n and n x 1, with 2048 entries and more so that chunks end inside rows; of tensors with
# dimensions beyond the second: short and long ones; bucketed with others of their shape, and alone.
SHAPES = [(7,), (), (0, 3), (3, 2500), (2500, 3), (1, 300), (300, 1), (40, 33), (40, 33), (4, 3, 2), (6, 5, 3, 3)]
LARGE = [(300, 257), (5, 20011), (3, 2, 12000), (66000,)]
# Twenty steps of a few roundings each at 6e-8 relative to weights of up to about 6; ratios amplify that by about 10.
CLOSE = {"rtol": 2e-5, "atol": 5e-6}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether compiled code served, one entry for every call."""
    answers: list[bool] = []
    update = native.update
    monkeypatch.setattr(native, "update", lambda *given: answers.append(update(*given)) or answers[-1])
    return answers


def tensors(shapes: list[tuple[int, ...]], seed: int) -> list[Tensor]:
    """Entries of widely different sizes, with a row, a column and a whole tensor of zeros."""
    draw = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=draw) * 0.3 for shape in shapes]
    for index, entries in enumerate(made):
        if entries.ndim > 1 and index % 2 and entries.shape[0] > 1 and entries.shape[1] > 1:
            entries[1], entries[:, 1] = 0.0, 0.0
    made[0].zero_()
    return made


def train(optimizer: torch.optim.Optimizer, shapes: list[tuple[int, ...]], first: int, last: int) -> None:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for step in range(first, last):
        for param, gradient in zip(params, reversed(tensors(shapes[::-1], 100 + step)), strict=True):
            param.grad = gradient
        optimizer.step()


def trained(optimizer_class: Any, shapes: list[tuple[int, ...]], steps: int = STEPS, **options: Any) -> list[Tensor]:
    params = [nn.Parameter(start) for start in tensors(shapes, 0)]
    train(optimizer_class(params, **{**BASE, **options}), shapes, 0, steps)
    return [param.detach() for param in params]


@needs_compiler
@ALL
def test_agrees_with_the_twin(optimizer_class: Any, options: dict, served: list[bool]) -> None:
    fast, slow = beside_twin(optimizer_class, TWINS[optimizer_class], torch.float32, BASE | options, native=True)
    assert_agrees(fast, slow, **CLOSE)
    assert all(served)
    assert len(served) >= STEPS


@needs_compiler
@ALL
def test_agrees_with_the_portable_path(optimizer_class: Any, options: dict, served: list[bool]) -> None:
    portable = trained(optimizer_class, SHAPES, **options)
    assert not served
    torch.testing.assert_close(trained(optimizer_class, SHAPES, native=True, **options), portable, **CLOSE)
    assert all(served)
    assert len(served) >= STEPS


@needs_compiler
@ALL
@pytest.mark.parametrize("kept", [2**22, 0])
def test_large_tensors_agree_whether_directions_are_kept_or_not(
    optimizer_class: Any, options: dict, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = trained(optimizer_class, LARGE, 3, **options)
    monkeypatch.setattr(native, "KEPT", kept)
    torch.testing.assert_close(trained(optimizer_class, LARGE, 3, native=True, **options), portable, **CLOSE)


@needs_compiler
@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
def test_the_memory_of_tiles_is_enough(optimizer_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    portable = trained(optimizer_class, SHAPES)
    monkeypatch.setattr("cbs.optimizers.trust_ratio.blocks.CPU", Extent(small=0, tile=4, block=16))
    torch.testing.assert_close(trained(optimizer_class, SHAPES, native=True), portable, **CLOSE)


@needs_compiler
@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
def test_a_run_can_change_over_and_its_checkpoint_too(optimizer_class: Any, served: list[bool]) -> None:
    whole = trained(optimizer_class, SHAPES, weight_decay=0.1)
    params = [nn.Parameter(start) for start in tensors(SHAPES, 0)]
    optimizer = optimizer_class(params, **{**BASE, "weight_decay": 0.1})
    train(optimizer, SHAPES, 0, 5)
    optimizer.param_groups[0]["native"] = True
    train(optimizer, SHAPES, 5, 10)
    calls = len(served)
    assert calls >= 5
    again = optimizer_class(params, lr=1.0)
    again.load_state_dict(optimizer.state_dict())
    train(again, SHAPES, 10, 15)
    assert len(served) > calls, "what is loaded says native"
    again.param_groups[0]["native"] = False
    calls = len(served)
    train(again, SHAPES, 15, STEPS)
    assert len(served) == calls
    torch.testing.assert_close([param.detach() for param in params], whole, **CLOSE)
    assert again.state[params[0]]["step"] == STEPS


@needs_compiler
@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["gradient", "weight"])
@pytest.mark.parametrize("shape", [(5, 40), (5,), (4, 3, 5)])
def test_numbers_that_are_not_finite_do_the_same(
    optimizer_class: Any, number: float, where: str, shape: tuple[int, ...]
) -> None:
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(shape))
        weight.grad = torch.randn(shape)
        target = weight.grad if where == "gradient" else weight.data
        target.view(-1)[3] = number
        optimizer_class([weight], lr=0.1, eps=1e-6, native=compiled).step()
        ends.append(weight.detach())
    torch.testing.assert_close(ends[1], ends[0], equal_nan=True, **CLOSE)


@needs_compiler
def test_squares_above_the_range_of_float32_are_added_up_in_float64() -> None:
    ends = []
    for dtype, compiled in ((torch.float64, False), (torch.float32, True)):
        weight = nn.Parameter(torch.tensor([1e30, 2e30, 0.0], dtype=dtype))
        weight.grad = torch.tensor([1.0, -1.0, 2.0], dtype=dtype)
        LAMB([weight], lr=0.1, native=compiled).step()
        ends.append(weight.detach().float())
    # The constants of the step are rounded to float32, and a handful of operations on them.
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=0.0)


@needs_compiler
def test_a_zero_entry_stays_where_the_ratio_overflows() -> None:
    weight = nn.Parameter(torch.full((2, 2), 0.5))
    weight.grad = torch.zeros(2, 2)
    weight.grad[0, 0], weight.grad[1] = 1e-40, 1.0
    MERIT([weight], lr=0.01, betas=(0.0, 0.0), eps=1.0, native=True).step()
    assert torch.isfinite(weight).all()
    assert weight[0, 1] == 0.5


@needs_compiler
@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, torch.float64), ({}, torch.bfloat16), ({"capturable": True}, torch.float32), ({"foreach": False}, None)],
)
def test_what_is_not_served_takes_the_portable_path(
    optimizer_class: Any, options: dict, dtype: torch.dtype | None, served: list[bool]
) -> None:
    ends = []
    for compiled in (False, True):
        params = [nn.Parameter(start.to(dtype or torch.float32)) for start in tensors([(4,), (5, 3)], 0)]
        optimizer = optimizer_class(params, native=compiled, **options)
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
        ends.append(params)
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert served
    assert not any(served)


@needs_compiler
def test_euclidean_merit_takes_the_portable_path(served: list[bool]) -> None:
    ends = [trained(MERIT, SHAPES, 2, norm="l2", native=compiled) for compiled in (False, True)]
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert not served


@needs_compiler
@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
@pytest.mark.parametrize("strided", ["weight", "gradient"])
def test_strided_tensors_do_the_same(optimizer_class: Any, strided: str, served: list[bool]) -> None:
    ends = []
    for compiled in (False, True):
        start, gradient = tensors([(1,), (6, 5)], 0)[1], tensors([(1,), (6, 5)], 1)[1]
        weight = nn.Parameter(start.t().contiguous().t() if strided == "weight" else start)
        weight.grad = gradient.t().contiguous().t() if strided == "gradient" else gradient
        optimizer_class([weight], lr=0.1, native=compiled).step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends, **CLOSE)
    assert served == [strided == "gradient"]


@needs_compiler
def test_a_tensor_for_a_learning_rate_and_moved_weights_are_fine() -> None:
    params = [nn.Parameter(start) for start in tensors(SHAPES, 0)]
    optimizer = MERIT(params, **{**BASE, "lr": torch.tensor(0.03)}, native=True)
    train(optimizer, SHAPES, 0, 3)
    for param in params:
        param.data = param.data.clone()
    train(optimizer, SHAPES, 3, 6)
    torch.testing.assert_close([param.detach() for param in params], trained(MERIT, SHAPES, 6), **CLOSE)


@needs_compiler
@pytest.mark.parametrize("name", ["merit", "lamb"])
def test_it_is_an_option_of_the_entry(name: str, served: list[bool]) -> None:
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(Choice(name=name, options={"native": True}), model, 0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert served
    assert all(served)


def test_without_a_compiler_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    native.kernel.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"native=True needs a C compiler, .* install one"):
        MERIT([nn.Parameter(torch.ones(1))], native=True)
    MERIT([nn.Parameter(torch.ones(1))])


@needs_compiler
def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int update( {\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "SOURCE", source)
    with pytest.raises(MissingDependencyError, match=r"cannot compile .*broken\.c: .*error.*; leave native=False"):
        native.build()
    assert not list((tmp_path / "cbs").iterdir()), "nothing half-made stays"


@needs_compiler
def test_native_must_be_a_flag() -> None:
    with pytest.raises(ValueError, match="native must be True or False, got 'yes'"):
        LAMB([nn.Parameter(torch.ones(1))], native="yes")  # type: ignore[arg-type]


def _build_at_once(barrier: Any, places: Any) -> None:
    barrier.wait()
    place = native.build()
    places.put((str(place), place.stat().st_size > 0))


@needs_compiler
def test_several_processes_may_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Forked, so that both start with what is imported here and meet at the compiler.
    context = multiprocessing.get_context("fork")
    barrier, places = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_build_at_once, args=(barrier, places)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [places.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert found[0] == found[1]
    assert found[0][1]
    assert [str(path) for path in (tmp_path / "cbs").iterdir()] == [found[0][0]], "one library and nothing half-made"
    native.kernel.cache_clear()
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    MERIT([weight], lr=0.5, betas=(0.0, 0.0), eps=0.0, native=True).step()
    # Weights and directions are all 1, so the step is lr.
    np.testing.assert_allclose(weight.detach().numpy(), 0.5, rtol=1e-6)
    native.kernel.cache_clear()
