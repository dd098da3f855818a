"""The compiled step of LAMB and MERIT against the portable path and the slow twins, and its build."""

from __future__ import annotations

import logging
import math
import multiprocessing
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.config import Choice, TrialConfig
from cbs.errors import MissingDependencyError
from cbs.optimizers import LAMB, MERIT
from cbs.optimizers.base import build_optimizer
from cbs.optimizers.trust_ratio import kernel, native
from cbs.optimizers.trust_ratio.blocks import Extent
from cbs.target import Target
from cbs.training import run_trial
from tests.optimizers.trust_ratios import STEPS, assert_agrees, beside_twin
from tests.references.lamb import LambTwin
from tests.references.merit import MeritTwin

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, kernel.COMPILERS)), reason="the machine has no C compiler"
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
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, not there yet, and a process that has not looked for the library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # What is made here is to be there, not to be fast.
    monkeypatch.setattr(kernel, "FLAGS", ("-O0", *kernel.FLAGS[1:]))
    kernel.forget()
    yield tmp_path / "cache" / "cbs"
    kernel.forget()


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
    portable = trained(optimizer_class, SHAPES, native=False, **options)
    assert not served
    compiled = trained(optimizer_class, SHAPES, native=True, **options)
    torch.testing.assert_close(compiled, portable, **CLOSE)
    assert all(served)
    assert len(served) >= STEPS
    # The default is the same code.
    torch.testing.assert_close(trained(optimizer_class, SHAPES, **options), compiled, rtol=0, atol=0)
    assert len(served) >= 2 * STEPS


@needs_compiler
@ALL
@pytest.mark.parametrize("kept", [2**22, 0])
def test_large_tensors_agree_whether_directions_are_kept_or_not(
    optimizer_class: Any, options: dict, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = trained(optimizer_class, LARGE, 3, native=False, **options)
    monkeypatch.setattr(native, "KEPT", kept)
    torch.testing.assert_close(trained(optimizer_class, LARGE, 3, native=True, **options), portable, **CLOSE)


@needs_compiler
@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
def test_the_memory_of_tiles_is_enough(optimizer_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    portable = trained(optimizer_class, SHAPES, native=False)
    monkeypatch.setattr("cbs.optimizers.trust_ratio.blocks.CPU", Extent(small=0, tile=4, block=16))
    torch.testing.assert_close(trained(optimizer_class, SHAPES, native=True), portable, **CLOSE)


@needs_compiler
@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
def test_a_run_can_change_over_and_its_checkpoint_too(optimizer_class: Any, served: list[bool]) -> None:
    whole = trained(optimizer_class, SHAPES, weight_decay=0.1, native=False)
    params = [nn.Parameter(start) for start in tensors(SHAPES, 0)]
    optimizer = optimizer_class(params, **{**BASE, "weight_decay": 0.1}, native=False)
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


def stepped(**options: Any) -> Tensor:
    """A matrix of ones after a step of MERIT along directions of 1: it moves by the learning rate."""
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    MERIT([weight], lr=0.5, betas=(0.0, 0.0), eps=0.0, **options).step()
    return weight.detach()


def assert_portable(caplog: pytest.LogCaptureFixture, served: list[bool], words: str) -> None:
    """That steps work without compiled code, and say so in one line at level INFO and in no other way."""
    caplog.set_level(logging.INFO)
    for _ in range(3):
        np.testing.assert_allclose(stepped(), 0.5, rtol=1e-6)
    (record,) = [record for record in caplog.records if record.name == kernel.__name__]
    assert record.levelno == logging.INFO
    assert words in record.getMessage()
    assert served == [False] * 3
    assert kernel.version() == "portable"


@needs_compiler
def test_native_must_be_a_flag_or_none() -> None:
    with pytest.raises(ValueError, match="native must be None, True or False, got 'yes'"):
        LAMB([nn.Parameter(torch.ones(1))], native="yes")  # type: ignore[arg-type]


@needs_compiler
def test_autograd_learns_that_the_weights_changed() -> None:
    weight = nn.Parameter(torch.ones(3))
    loss = weight.square().sum()
    weight.grad = torch.ones(3)
    LAMB([weight], native=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Wrapper(Tensor):
    """Stands for tensors that do not hold their entries themselves."""


@needs_compiler
def test_subclasses_of_tensors_take_the_portable_path(served: list[bool]) -> None:
    weight = nn.Parameter(torch.ones(2, 2).as_subclass(Wrapper))
    weight.grad = torch.ones(2, 2)
    MERIT([weight], lr=0.5, betas=(0.0, 0.0), eps=0.0).step()
    assert served == [False]
    np.testing.assert_allclose(weight.detach().numpy(), 0.5, rtol=1e-6)


def test_without_a_compiler_it_says_what_to_do_or_does_without(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, served: list[bool]
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDependencyError, match=r"native=True needs a C compiler, .* install one"):
        MERIT([nn.Parameter(torch.ones(1))], native=True)
    assert_portable(caplog, served, "needs a C compiler")


@needs_compiler
def test_without_a_compiler_what_was_compiled_before_serves(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, served: list[bool]
) -> None:
    stepped()
    kernel.forget()
    monkeypatch.setenv("PATH", "")
    stepped()
    stepped(native=True)
    assert served == [True] * 3


@needs_compiler
def test_a_compiler_that_fails_is_quoted_and_not_asked_again(
    cache_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    served: list[bool],
) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int update( {\n")
    monkeypatch.setattr(kernel, "SOURCE", source)
    assert_portable(caplog, served, "broken.c: ")
    (note,) = cache_folder.iterdir()
    assert note.suffix == ".failed", "and nothing half-made stays"
    kernel.forget()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("another process need not compile"))
        assert kernel.automatic() is None
    with pytest.raises(MissingDependencyError, match=r"cannot compile .*broken\.c: .*error.*; leave native at its"):
        kernel.required()
    # Another compiler may do better.
    kernel.forget()
    monkeypatch.setattr(kernel, "SOURCE", native_source := tmp_path / "native.c")
    shutil.copy(Path(native.__file__).with_name("native.c"), native_source)
    assert kernel.automatic() is not None


@needs_compiler
def test_after_a_failure_another_compiler_is_tried(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clumsy = tmp_path / "bin" / "cc"
    clumsy.parent.mkdir()
    clumsy.write_text("#!/bin/sh\nexit 1\n")
    clumsy.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(clumsy.parent))
        assert kernel.automatic() is None
    kernel.forget()
    assert kernel.automatic() is not None
    assert [place.suffix for place in cache_folder.iterdir()] == [".so"], "the note is gone"


@pytest.mark.parametrize("place", ["/proc/nowhere", "file"])
def test_a_cache_folder_that_cannot_be_written_does_without(
    place: str,
    cache_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    served: list[bool],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    with pytest.raises(MissingDependencyError, match=r"cannot write to .*; point XDG_CACHE_HOME to a folder that can"):
        kernel.required()
    assert_portable(caplog, served, "cannot write to")


DAMAGE = {
    "cut off": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "not a library": lambda content: b"foreign" * 100,
    "one bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@needs_compiler
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_library_is_made_anew(damage: str, cache_folder: Path, served: list[bool]) -> None:
    stepped()
    (place,) = cache_folder.iterdir()
    content = place.read_bytes()
    # Another file in its place: this process has the old one mapped.
    place.unlink()
    place.write_bytes(DAMAGE[damage](content))
    kernel.forget()
    stepped()
    assert served == [True, True]
    (place,) = cache_folder.iterdir()
    assert place.stem.endswith(kernel._hash(place.read_bytes()))


@needs_compiler
def test_a_library_that_cannot_be_loaded_is_made_once_more_and_then_done_without(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, served: list[bool]
) -> None:
    kernel.required()
    kernel.forget()
    tried = []

    def refused(place: Path) -> None:
        tried.append(place)
        raise OSError("failed to map segment from shared object")

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "_load", refused)
        assert_portable(caplog, served, "failed to map segment")
        assert len(tried) == 2
        kernel.forget()
        assert kernel.automatic() is None
        assert len(tried) == 2, "another process does not try again"


@needs_compiler
def test_the_source_the_flags_and_the_processor_name_the_library(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [kernel.version()]
    for name, value in (("FLAGS", (*kernel.FLAGS, "-O2")), ("_processor", lambda: "another"), ("SOURCE", None)):
        with monkeypatch.context() as patch:
            if name == "SOURCE":
                value = tmp_path / "other.c"
                value.write_text(kernel.SOURCE.read_text() + "\n")
            patch.setattr(kernel, name, value)
            kernel.forget()
            names.append(kernel.version())
    assert len(set(names)) == len(names) == len(list(cache_folder.iterdir()))
    assert all(name.startswith("native ") for name in names)


def _build_at_once(barrier: Any, results: Any) -> None:
    compile_it, calls = subprocess.run, []

    def counted(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return compile_it(*given, **options)

    subprocess.run = counted  # type: ignore[assignment]
    kernel.forget()
    barrier.wait()
    results.put((kernel.automatic() is not None, len(calls)))


@needs_compiler
def test_of_several_processes_one_compiles(cache_folder: Path) -> None:
    # Forked, so that all start with what is imported here and meet at the compiler.
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_build_at_once, args=(barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 3
    assert found == [(True, 0), (True, 0), (True, 1)]
    (library,) = cache_folder.iterdir()
    assert library.suffix == ".so", "one library and nothing half-made"
    np.testing.assert_allclose(stepped(native=True), 0.5, rtol=1e-6)


@needs_compiler
def test_building_an_optimizer_compiles_and_its_first_step_does_not(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, served: list[bool]
) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    for options in ({"native": False}, {"capturable": True}, {"foreach": False}):
        LAMB([weight], **options)
    LAMB([nn.Parameter(torch.ones(2, 2, dtype=torch.float64))])
    assert not cache_folder.exists(), "what no compiled code can serve needs none"
    optimizer = LAMB(iter([weight]))
    assert len(list(cache_folder.iterdir())) == 1
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled in a step"))
    optimizer.step()
    assert served == [True]


def _trial(results: Any) -> None:
    kernel.forget()
    trial = TrialConfig(
        workload=Choice(name="noisy_quadratic", options={"dimension": 30}),
        optimizer=Choice(name="merit"),
        lr=0.01,
        batch_size=4,
        seed=1,
        target=Target(metric="validation_loss", value=1e-9),
        max_steps=30,
        probe=None,
    )
    results.put([row.value for row in run_trial(trial).evaluations])


@needs_compiler
def test_a_trial_repeats_bitwise_in_the_process_that_compiles_and_the_one_that_loads(cache_folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    curves = []
    for _ in range(2):
        results = context.Queue()
        process = context.Process(target=_trial, args=(results,))
        process.start()
        curves.append(results.get(timeout=60))
        process.join(60)
    assert len(curves[0]) > 10
    assert curves[0] == curves[1]
