"""Common parts of several papers' recipes: workloads, sweeps, and statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from cbs.registry.choices import Choice, parse_choice
from cbs.trial.target import Target
from extensions.papers.experiments.base import EACH, AnswerPath, Expectation, RecipeRun, Step
from extensions.papers.experiments.relations import Beyond, Likely, Near
from sweeps.spec.axes import Axes
from sweeps.spec.schedule_rule import ScheduleRule
from sweeps.spec.spec import Sweep, prototype

COSINE = ScheduleRule(name="cosine")

TEXT = Choice(name="text")
"""Byte-level model of the embedded text with a context of 32 bytes and 29,856 parameters."""

OPENWEBTEXT = {
    "data": "data/openwebtext/train.bin", "validation": "data/openwebtext/val.bin", "dtype": "uint16",
    "vocab_size": 50257,
}  # fmt: skip
"""Token files of OpenWebText as nanoGPT prepares them."""

AUTO = Choice(name="auto")
"""Probe that measures as often as suits the batch size."""

PROBE = Choice(name="auto", options={"every": 2})
"""Probe for every second step: tiny runs take about a hundred steps, and an interval needs tens of measurements."""

C4 = {"data": "data/c4/train", "validation": "data/c4/validation", "tokenizer": "data/c4/tokenizer.json"}


def experiment(workload: Choice, optimizers: Sequence[str], batch_sizes: Sequence[int], **changes: Any) -> Sweep:
    """Return a sweep of a recipe with ``changes`` of its settings; a number as ``target`` is a validation loss. The
    noise scale is not measured unless ``probe`` is given."""
    target = changes.pop("target", None)
    if isinstance(target, float):
        target = Target(metric="validation_loss", value=target)
    sweep = Sweep(
        name="recipe",
        trial=prototype(workload=workload, target=target, probe=None, micro_batch_size=128),
        axes=Axes(optimizers=tuple(map(parse_choice, optimizers)), batch_sizes=tuple(batch_sizes)),
    )
    return sweep.replace(**changes)


def one_run(name: str, sweep: Sweep, tiny: bool, **published: Any) -> RecipeRun:
    """Return a run; at the scale of the paper with the published facts about its model."""
    return RecipeRun(name=name, sweep=sweep, **({} if tiny else published))


def classifier(name: str, classes: int, channels: int, size: int, norm: str = "batch") -> Callable[[], nn.Module]:
    """Return a function that builds an image classifier; the workload itself could not without its data."""
    from extensions.papers.image_parts.models import build_classifier

    return lambda: build_classifier(name, classes=classes, channels=channels, size=size, norm=norm)


def among_sizes(optimizer: Step, *path: Step, budget: int = -1) -> AnswerPath:
    """Return the position of a number in the analysis ``budget`` (``cbs budget``) that compares the batch sizes of an
    optimizer. It counts only if no best learning rate lies at the edge of the grid, as such a batch size, which is not
    compared, may be the best."""
    of: tuple[Step, ...] = ("budgets", budget, "optimizers", optimizer)
    return AnswerPath(analysis="budget", path=(*of, *path), ok=((*of, "sizes", EACH, "at_grid_edge"),))


def fitted(name: str, *, analysis: str = "analyze", **fit: Any) -> AnswerPath:
    """Return the position of a number of a curve in ``cbs analyze``. It counts only if the verdict is ``ok``, as its
    interval does not allow for a learning rate at the edge of the grid, or for points that are off the curve."""
    return AnswerPath(analysis=analysis, path=("fits", fit, name), ok=(("fits", fit, "verdict"),))


def larger_critical(larger: str, smaller: str, published: str, source: str) -> Expectation:
    """Return the statement that the critical batch size of one optimizer exceeds that of another, from the analysis
    ``compare`` (``cbs compare``)."""
    pair: dict[str, Any] = {"larger": larger, "smaller": smaller}
    of: tuple[Step, ...] = ("comparisons", 0, "critical_batch_sizes", pair)
    return Expectation(
        claim=f"the critical batch size of {larger} is larger than that of {smaller}",
        published=published,
        source=source,
        relation=Likely(),
        ours=(AnswerPath(analysis="compare", path=(*of, "probability"), ok=((*of, "verdict"),)),),
    )


def lower_loss(
    better: str, worse: str, batch_size: int, published: str, source: str, *, analysis: str = "budget"
) -> Expectation:
    """Return the statement that one optimizer ends at a lower loss than another at a batch size, from ``cbs budget``,
    whose pairs are in alphabetical order."""
    first, other = sorted((better, worse))
    pair: dict[str, Any] = {"optimizer": first, "other": other}
    path = ("budgets", -1, "pairs", pair, "at", {"batch_size": batch_size})
    return Expectation(
        claim=f"{better} ends below {worse} at batch size {batch_size}",
        published=published,
        source=source,
        relation=Beyond(0.0, above=better == other),
        ours=(AnswerPath(analysis=analysis, path=path),),
    )


def schedule_less(schedule: str, batch_size: int, against: int, field: str = "") -> AnswerPath:
    """Return the position of a schedule's final loss minus that of a constant batch size, or of another field of their
    comparison, in the analysis ``losses`` (``cbs schedule judge``)."""
    entry: dict[str, Any] = {"schedule": schedule, "batch_size": batch_size}
    path: tuple[Step, ...] = ("entries", entry, "against", {"batch_size": against}, *([field] if field else []))
    return AnswerPath(analysis="losses", path=path, exact=bool(field))


def steps_saved(schedule: str, batch_size: int, against: int, share: float, published: str, source: str) -> Expectation:
    """Return the statement that a schedule saves a fraction of the steps of a constant batch size."""
    return Expectation(
        claim=f"{schedule} from batch size {batch_size} saves steps against the constant {against}",
        published=published,
        source=source,
        relation=Near((share,), 0.02),
        ours=(schedule_less(schedule, batch_size, against, "steps_saved"),),
    )
