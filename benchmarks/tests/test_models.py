"""The page of models, cell by cell, and what the cells themselves are made of."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
import torch
from torch import nn

from benchmarks import model_cells, models
from benchmarks.model_cells import (
    CRASHED,
    EXACT,
    FALLBACK,
    MODES,
    REFUSED,
    UNFIT,
    WRONG,
    Cell,
    Seen,
    judge,
    run,
    torch_zoo,
)
from benchmarks.model_reference import Micro, moments, reference
from benchmarks.models import Key, general, page, read
from benchmarks.zoo_entry import Entry, classify, features
from benchmarks.zoo_layers import LAYERS, ResNet
from cbs.errors import ConfigError
from cbs.noise_scale.moments import Moments, Sizes
from cbs.noise_scale.probe import Probe

PAGE = models.PAGE
CELLS = read(PAGE.read_text())

MODES_IN_SECONDS = {
    "MLP": {*MODES} - {"inductor", "compiled"},
    "nanoGPT": {"checkpointed", "autocast"},
    "ResNet, BatchNorm": {"accumulated", "bfloat16"},
}


def first_of_each(kind: Callable[[Key], Any], keys: Iterable[Key] = CELLS) -> set[Key]:
    """One cell of every kind, by a checksum of its name: the same in whatever order and with whatever others."""
    found: dict[Any, Key] = {}
    for key in sorted(keys, key=lambda key: crc32(", ".join(key).encode())):
        found.setdefault(kind(key), key)
    return {*found.values()}


def outcome(key: Key) -> tuple[str, ...]:
    return (*key[1:], CELLS[key].kind, CELLS[key].line)


def quick(model: str, mode: str, source: str) -> bool:
    if mode != "eager":
        return mode in MODES_IN_SECONDS.get(model, ())
    if model in LAYERS:
        return source == "split" or CELLS[model, mode, source].kind != EXACT or model in MODES_IN_SECONDS
    return model in torch_zoo() and source == "split"


FAST = sorted(first_of_each(outcome, filter(lambda key: quick(*key), CELLS)))
SLOW = sorted((first_of_each(lambda key: key[0]) | first_of_each(outcome)) - {*FAST})


@pytest.mark.parametrize(
    ("model", "mode", "source"),
    [
        pytest.param(*key, id=", ".join(key), marks=marks)
        for keys, marks in ((FAST, ()), (SLOW, pytest.mark.slow))
        for key in keys
    ],
)
def test_a_cell_is_what_the_page_says(model: str, mode: str, source: str) -> None:
    """Of models that take milliseconds every outcome; the slow ones are of every model and every outcome. Where one is
    not so:
    ``python -m benchmarks.models --model MODEL --write benchmarks/noise_scale_models.md``; without ``--model`` it runs
    all of them, in an hour or two."""
    pytest.importorskip("transformers")
    found, wanted = run(model, mode, source), CELLS[model, mode, source]
    if UNFIT in (found.kind, wanted.kind) and mode in ("autocast", "bfloat16"):
        # whether torch runs a model in bfloat16 depends on the processor; where it does, the answer is one of the good
        assert found.kind not in (WRONG, CRASHED), found.line
        return
    assert found.kind == wanted.kind, found.line
    if found.kind == REFUSED:
        assert general(found.line) == wanted.line


def test_the_page_says_what_is_compared_and_tolerated() -> None:
    said = " ".join(PAGE.read_text().split())
    assert f"makes three steps of {', '.join(map(str, model_cells.SIZES))} examples a micro-batch" in said
    for numbers, told in (
        (model_cells.ROUNDING, ("{:g} in float32 (sums", "{:g} in bfloat16, where")),
        (model_cells.FLOOR, ("below {:g} (", "({:g} in bfloat16) are rounding")),
    ):
        for text, dtype in zip(told, (torch.float32, torch.bfloat16), strict=True):
            assert text.format(numbers[dtype]) in said
    assert f"the difference is below {model_cells.GAP:g} of the norms" in said


def test_no_cell_of_the_page_is_wrong() -> None:
    assert [key for key, cell in CELLS.items() if cell.kind in (WRONG, CRASHED)] == []


def test_the_page_has_every_model_and_every_mode() -> None:
    pytest.importorskip("transformers")
    entries = models.zoo()
    assert len(entries) >= 40
    assert {*CELLS} <= {*models.keys(list(entries), MODES)}
    assert {*CELLS} >= {*models.keys(list(entries), ["eager"])}
    assert {mode for _, mode, _ in CELLS} == {*MODES}


def test_a_page_reads_back_as_it_was_written() -> None:
    line = "layer '{}' has {} rows; use the source 'accumulation'"
    cells = {
        ("MLP", "eager", "split"): Cell(EXACT),
        ("MLP", "eager", "auto"): Cell(EXACT),
        ("MLP", "trainer", "split"): Cell(REFUSED, line.format("a.b", 3)),
        ("MLP", "trainer", "per_example"): Cell(WRONG, "off by 1.2e+03 | or so"),
        ("MLP", "trainer", "auto"): Cell(FALLBACK, "a note"),
        ("ResNet, BatchNorm", "eager", "split"): Cell(REFUSED, line.format("c", 44), False),
        ("ResNet, BatchNorm", "eager", "per_example"): Cell(CRASHED, "ValueError: no", False),
        ("ResNet, BatchNorm", "eager", "accumulation"): Cell("no value", "", False),
    }  # fmt: skip
    wanted = {key: replace(cell, line=general(cell.line) * (cell.kind != FALLBACK)) for key, cell in cells.items()}
    text = page(LAYERS, cells)
    assert read(text) == wanted
    assert text.count(line.format("...", "n")) == 1


def test_the_loop_finds_the_gradients_of_a_linear_regression() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    entry = Entry(
        build=lambda: model,
        batch=lambda n, g: {"x": torch.randn(n, 3, generator=g), "y": torch.randn(n, 1, generator=g)},
        loss=lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean(),
    )
    micros = [Micro(batch=entry.batch(6, generator), seed=0, factor=0.5) for _ in range(2)]
    found = reference(entry, model, micros, nullcontext)
    assert found.gap < 1e-6
    rows = [(2 * (model(micro.batch["x"]) - micro.batch["y"]) * micro.batch["x"]).detach().double() for micro in micros]
    every = torch.cat(rows)  # gradients of single examples
    whole = every.mean(0)
    for source, parts in (
        ("per_example", list(every)),
        ("split", [rows[0][:3], rows[0][3:], rows[1][:3], rows[1][3:]]),
        ("accumulation", rows),
    ):
        groups = found.groups(source)
        means = [part.reshape(-1, 3).mean(0) for part in parts]
        sizes = [part.numel() // 3 for part in parts]
        assert [size for _, size in groups] == sizes
        for (gradients, size), mean in zip(groups, means, strict=True):
            torch.testing.assert_close(gradients[0][0], mean * size / 12, rtol=1e-5, atol=1e-7)
        signal, noise, _ = moments(groups, found.whole)
        between = sum(size / 12 * (mean - whole).square().sum() for mean, size in zip(means, sizes, strict=True))
        trace = between / (len(parts) / 12 - 1 / 12)
        torch.testing.assert_close(noise[0], trace, rtol=1e-5, atol=0)
        torch.testing.assert_close(signal[0], whole.square().sum() - trace / 12, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("norm", "own"), [(nn.BatchNorm2d, False), (nn.InstanceNorm2d, True)])
def test_examples_that_are_mixed_do_not_add_up(norm: Callable[[int], nn.Module], own: bool) -> None:
    torch.manual_seed(0)
    entry = Entry(build=lambda: ResNet(norm), batch=features(3, 6, 6), loss=classify)
    micro = Micro(batch=entry.batch(4, torch.Generator().manual_seed(0)), seed=0, factor=1.0)
    assert (reference(entry, entry.build(), [micro], nullcontext).gap < model_cells.GAP) == own


def test_a_gradient_that_is_changed_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def hooked(entry: Entry, mode: str) -> nn.Module:
        model = model_cells.plain(entry, mode)
        next(model.parameters()).register_hook(lambda gradient: gradient * 1.001)
        return model

    assert run("MLP", "eager", "accumulation").kind == EXACT
    monkeypatch.setattr(model_cells, "prepared", hooked)
    found = run("MLP", "eager", "accumulation")
    assert found.kind == WRONG
    assert "gradient itself" in found.line


def test_numbers_for_examples_that_are_mixed_are_wrong() -> None:
    """Whatever they are."""
    step = model_cells.expected("contrastive loss", "eager", 0, 1)
    signal, noise, _ = moments(step.reference.groups("split"), step.reference.whole)
    values = Moments(indices=(), signal=signal, noise=noise, sizes=Sizes(small=2, big=4, groups=2))
    for source in ("split", "auto"):
        seen = Seen(step.reference, {"l2": values}, step.reference.whole, "split")
        assert judge("contrastive loss", "eager", source, [seen], "").kind == WRONG


@pytest.mark.parametrize(
    ("error", "kind"), [(ConfigError("not this one"), REFUSED), (ValueError("not this one"), CRASHED)]
)
def test_errors_are_part_of_the_answer(error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: Probe, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(Probe, "step", step)
    found = run("MLP", "eager", "split")
    assert found.kind == kind
    assert "not this one" in found.line
