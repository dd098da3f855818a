"""One model in one mode with one source: what the noise scale says, against the loop over examples."""

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.model_reference import Micro, Reference, moments, reference
from benchmarks.zoo_corners import CORNERS, OWN
from benchmarks.zoo_entry import FIRST, Entry
from benchmarks.zoo_formulas import FORMULAS
from benchmarks.zoo_layers import LATE, LAYERS
from benchmarks.zoo_loops import GROUPS, LOOPS
from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.geometries import as_real

SOURCES = ("split", "per_example", "accumulation", "auto")
MODES = ("eager", "accumulated", "checkpointed", "autocast", "bfloat16", "compiled", "trainer", "reentrant", "inductor")
RARE = ("reentrant", "inductor")  # Modes that few models are run in

EXACT, FALLBACK, REFUSED, NONE, UNFIT = "exact", "fell back", "refused", "no value", "does not run"
TOLD = "check tells"
WRONG, CRASHED = "WRONG", "CRASHED"

SAID = "pass groups= to say which belong together"  # Part of the note about examples that are nearly the same

STEPS = 3
SIZES = (4, 4, 5)
"""Examples of a micro-batch, step by step: whether layers are watched rightly is looked into in the first steps only,
and an odd number falls into other groups than halves."""

ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 8e-2}
"""Tolerated difference of a moment, relative to the sum of the two squared norms it is a difference of: in float32 the
rounding of sums of a thousand products is about 1e-6 of a norm, squared twice that; in bfloat16 each of some twenty
operations in a row rounds by up to 4e-3, examples run alone or together round differently."""

FLOOR = {torch.float32: 1e-10, torch.bfloat16: 2e-3}
"""The same for a single parameter tensor, relative to the squared norms of all of them: gradients that vanish, as that
of a bias before a normalisation, consist of rounding."""

GAP = 1e-4  # Largest :attr:`Reference.gap`, in float32, at which examples are said to add up


@dataclass(frozen=True)
class Cell:
    """What became of a model in a mode with a source.

    Attributes:
        kind: one of ``EXACT`` to ``CRASHED``.
        line: of a refusal, a fall-back or a crash; what differed where it is wrong.
        separable: whether the gradients of examples add up to that of the batch.
        error: largest difference found, in units of what is tolerated.
    """

    kind: str
    line: str = ""
    separable: bool = True
    error: float = 0.0


@dataclass(frozen=True)
class Seen:
    """What was seen of one step."""

    reference: Reference
    moments: dict[str, Any]
    gradients: list[Tensor]
    source: str


def suits(entry: Entry, mode: str) -> bool:
    """Whether a model is run in a mode."""
    if mode in RARE:
        return mode in entry.also
    if mode in entry.skips:
        return False
    if mode == "compiled":
        return entry.compiled
    return mode != "checkpointed" or entry.blocks != ()


def run(name: str, mode: str, source: str) -> Cell:
    """Attach, make some steps, compare; whatever is raised is part of the answer."""
    entry = find(name)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    seen: list[Seen] = []
    try:
        expected(name, mode, 0, 1)
    except RuntimeError as error:
        return Cell(UNFIT, first_line(error))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if mode == "trainer":
                note = in_trainer(entry, source, seen)
            else:
                note = loop(name, entry, mode, source, seen)
    except ConfigError as error:
        judged = judge(name, mode, source, seen, "")
        return judged if judged.kind == WRONG else Cell(REFUSED, str(error), separable(name))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
        return Cell(CRASHED, first_line(error))
    judged = judge(name, mode, source, seen, note)
    if not entry.only_check or judged.kind != WRONG:
        return judged
    return Cell(TOLD, note, judged.separable, judged.error) if SAID in note else told(judged, name, mode, source)


def told(judged: Cell, name: str, mode: str, source: str) -> Cell:
    """What ``NoiseScaleMeter.check`` says of a model whose numbers nothing else can tell to be wrong."""
    entry = find(name)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with context_of(mode)():
            return entry.loss(model, batch)

    batch = expected(name, mode, 0, 1).micros[0].batch
    try:
        found = NoiseScaleMeter.check(plain(entry, mode), loss, batch, source=source, **entry.options)
    except ConfigError:
        return judged
    return judged if found.ok else Cell(TOLD, "", judged.separable, judged.error)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: " + str(error).strip().partition("\n")[0].partition(". ")[0]


def loop(name: str, entry: Entry, mode: str, source: str, seen: list[Seen]) -> str:
    """The plain training loop; returns the note of the estimate."""
    model = prepared(entry, mode)
    called = model
    if mode in ("compiled", "inductor"):
        torch._dynamo.reset()
        called = torch.compile(model, backend="aot_eager" if mode == "compiled" else "inductor")  # type: ignore[assignment]
    noise_scale = NoiseScaleMeter(called, source=source, **entry.options)
    record: list[Any] = []
    inner = noise_scale.probe.step

    def kept(**options: Any) -> Any:
        record.append(inner(**options))
        return record[-1]

    noise_scale.probe.step = kept  # type: ignore[method-assign]
    with noise_scale:
        for step in range(STEPS):
            several = mode == "accumulated" or noise_scale.probe.source == "accumulation"
            micro_batches = 2 if several else noise_scale.probe.micro_batches
            wanted = expected(name, mode, step, micro_batches)
            if entry.change is not None:
                entry.change(model, step)
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            model.load_state_dict(wanted.state)
            for micro in wanted.micros:
                torch.manual_seed(micro.seed)
                with context_of(mode)():
                    loss = entry.loss(called, micro.batch) * micro.factor
                loss.backward()
            gradients = [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                for parameter in parameters
            ]
            seen.append(Seen(wanted.reference, {}, gradients, noise_scale.probe.source))
            noise_scale.step()
            seen[-1] = Seen(wanted.reference, record[-1] or {}, gradients, noise_scale.probe.source)
            model.zero_grad()
        return noise_scale.estimate().note


def in_trainer(entry: Entry, source: str, seen: list[Seen]) -> str:
    """The Trainer of transformers with our callback; returns the note of the estimate."""
    from benchmarks.model_trainer import train  # takes seconds to import

    found: list[Any] = []
    try:
        return train(entry, partial(plain, entry), source, found)
    finally:
        seen.extend(Seen(*step) for step in found)


def judge(name: str, mode: str, source: str, seen: list[Seen], note: str) -> Cell:
    """Compare what was seen of some steps."""
    dtype = torch.bfloat16 if mode in ("autocast", "bfloat16") else torch.float32
    entry, whole = find(name), separable(name)
    largest, measured, used = 0.0, 0, ""
    for step in seen:
        moment = step.moments.get("l2")
        _, _, scale = moments(step.reference.groups("per_example"), step.reference.whole)
        difference = torch.stack(
            [
                (as_real(gradient).double() - want).square().sum()
                for gradient, want in zip(step.gradients, step.reference.whole, strict=True)
            ]
        )
        changed = float((difference / (scale * ROUNDING[dtype] ** 2 + scale.sum() * FLOOR[dtype])).max().sqrt())
        if changed > 1 and not (entry.terms and mode in ("compiled", "inductor")):
            return Cell(WRONG, f"the gradient itself is off, {changed:.3g} times what is tolerated", whole, changed)
        if moment is None or (moment.sizes.groups < 2 and bool(moment.signal.isnan().all())):
            continue
        measured, used = measured + 1, step.source
        if step.source != "accumulation" and not whole:
            return Cell(WRONG, "numbers, although examples have no gradient of their own", whole)
        if step.source != "accumulation" and entry.counted > 1:
            return Cell(WRONG, "rows of one example are in different groups", whole)
        groups = [(gradients, size * entry.counted) for gradients, size in step.reference.groups(step.source)]
        examples = sum(size for _, size in groups)
        if (moment.sizes.groups, moment.sizes.big) != (len(groups), examples):
            found = f"{moment.sizes.big:g} examples in {moment.sizes.groups} groups"
            return Cell(WRONG, f"counts {found}, there are {examples} in {len(groups)}", whole)
        signal, noise, scale = moments(groups, step.reference.whole)
        small = examples / len(groups)
        for found, want, unit in ((moment.signal, signal, scale), (moment.noise, noise, scale * small)):
            off = float(((found - want).abs() / (unit * ROUNDING[dtype] + unit.sum() * FLOOR[dtype])).max())
            total = float((found.sum() - want.sum()).abs() / unit.sum() / ROUNDING[dtype])
            largest = max(largest, off if off == off else float("inf"), total)
        if not largest <= 1:
            return Cell(WRONG, f"off by {largest:.3g} times what is tolerated", whole, largest)
    if not measured:
        return Cell(NONE, note, whole)
    if used != source and not (source == "auto" and used == "split"):
        return Cell(FALLBACK, note, whole, largest)
    return Cell(EXACT, "", whole, largest)


@dataclass(frozen=True)
class Wanted:
    """A step as it should be."""

    state: dict[str, Tensor]
    micros: list[Micro]
    reference: Reference


def expected(name: str, mode: str, step: int, micro_batches: int) -> Wanted:
    """The state, the data and the gradients of a step."""
    size = SIZES[step] if mode not in ("compiled", "inductor") else SIZES[0]
    return _expected(name, mode if mode in ("autocast", "bfloat16") else "eager", step, micro_batches, size)


@lru_cache(maxsize=64)
def _expected(name: str, precision: str, step: int, micro_batches: int, size: int) -> Wanted:
    entry = find(name)
    model = plain(entry, precision)
    for earlier in range(step + 1 if entry.change is not None else 0):
        entry.change(model, earlier)  # type: ignore[misc]
    generator = torch.Generator().manual_seed(FIRST + step)
    with torch.no_grad():  # as if the optimizer had moved them
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.mul_(1 + 0.05 * step * noise)
    micros = [
        Micro(batch=cast(entry.batch(size, generator), precision), seed=100 * step + number, factor=1.0 / micro_batches)
        for number in range(micro_batches)
    ]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    return Wanted(state, micros, reference(entry, model, micros, context_of(precision)))


def separable(name: str) -> bool:
    """Whether the gradients of examples add up to that of the batch."""
    return expected(name, "eager", 0, 1).reference.gap <= GAP


def plain(entry: Entry, precision: str = "eager") -> nn.Module:
    """A model as it is built."""
    torch.manual_seed(0)
    model = entry.build()
    return model.bfloat16() if precision == "bfloat16" else model


def prepared(entry: Entry, mode: str) -> nn.Module:
    """A model as a mode runs it."""
    model = plain(entry, mode)
    if mode not in ("checkpointed", "reentrant"):
        return model
    reentrant = mode == "reentrant"
    if entry.blocks is None:
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": reentrant}
        )
        return model
    for name in entry.blocks:
        block = model.get_submodule(name)
        block.__class__ = recomputed(type(block), reentrant)
    return model


def recomputed(kind: type[nn.Module], reentrant: bool) -> type[nn.Module]:
    """The same type of module, called as ``checkpoint(module, ...)``."""

    class Recomputed(kind):  # type: ignore[misc,valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return checkpoint(super().__call__, *args, use_reentrant=reentrant, **kwargs)

    return Recomputed


def cast(batch: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    if precision != "bfloat16":
        return batch
    return {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}


def context_of(mode: str) -> Callable[[], AbstractContextManager[object]]:
    return partial(torch.autocast, "cpu", torch.bfloat16) if mode == "autocast" else nullcontext


def zoo() -> dict[str, Entry]:
    """All models by name."""
    # Here, because transformers takes seconds to import, and most models do without it.
    from benchmarks.zoo_transformers import RECENT, TRANSFORMERS

    return {**TRANSFORMERS, **RECENT, **torch_zoo()}


def torch_zoo() -> dict[str, Entry]:
    """Those that need torch alone."""
    return {**LAYERS, **LOOPS, **CORNERS, **OWN, **GROUPS, **FORMULAS, **LATE}


def find(name: str) -> Entry:
    """A model by name; transformers is imported for its own models alone."""
    own = torch_zoo()
    return own[name] if name in own else zoo()[name]
