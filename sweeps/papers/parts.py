"""What the recipes of several papers share: sweeps of the embedded text and of published models, common statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from cbs.registry.choices import Choice, parse_choice
from cbs.trial.target import Target
from sweeps.papers.base import EACH, AnswerPath, Expectation, RecipeRun, Step
from sweeps.papers.relations import Beyond, Likely, Near
from sweeps.spec.schedule_rule import ScheduleRule
from sweeps.spec.spec import Sweep

COSINE = ScheduleRule(name="cosine")

TEXT = Choice(name="text")
"""Bytes of the embedded text, contexts of 32, 29,856 parameters."""

OPENWEBTEXT = {
    "data": "data/openwebtext/train.bin", "validation": "data/openwebtext/val.bin", "dtype": "uint16",
    "vocab_size": 50257,
}  # fmt: skip
"""Token files as nanoGPT prepares them."""

AUTO = Choice(name="auto")
"""A probe that leaves it to the batch size how often it measures."""

PROBE = Choice(name="auto", options={"every": 2})
"""Measures every second step: tiny runs take about a hundred, and an interval needs tens of measurements."""

C4 = {"data": "data/c4/train", "validation": "data/c4/validation", "tokenizer": "data/c4/tokenizer.json"}


def experiment(workload: Choice, optimizers: Sequence[str], batch_sizes: Sequence[int], **changes: Any) -> Sweep:
    """A sweep that a recipe runs, noise scale unmeasured unless asked for; a loss as ``target`` is the workload's."""
    target = changes.pop("target", None)
    if isinstance(target, float):
        target = Target(metric="validation_loss", value=target)
    settings = {"probe": None, "micro_batch_size": 128} | changes
    return Sweep(
        name="recipe",
        workload=workload,
        optimizers=tuple(map(parse_choice, optimizers)),
        batch_sizes=tuple(batch_sizes),
        target=target,
        **settings,
    )


def one_run(name: str, sweep: Sweep, tiny: bool, **published: Any) -> RecipeRun:
    """A run, with what is published of its model at the scale of the paper."""
    return RecipeRun(name=name, sweep=sweep, **({} if tiny else published))


def classifier(name: str, classes: int, channels: int, size: int, norm: str = "batch") -> Callable[[], nn.Module]:
    """Builds a classifier of images, whose data would have to be there for the workload to do so."""
    from cbs.workloads.image_parts.models import build_classifier

    return lambda: build_classifier(name, classes=classes, channels=channels, size=size, norm=norm)


def among_sizes(optimizer: Step, *path: Step, budget: int = -1) -> AnswerPath:
    """A number from ``cbs budget`` called ``budget`` that compares the batch sizes of an optimizer; it leaves those out
    whose best learning rate is at the edge of the grid, one of which may be the best, so there must be none."""
    of: tuple[Step, ...] = ("budgets", budget, "optimizers", optimizer)
    return AnswerPath(analysis="budget", path=(*of, *path), ok=((*of, "sizes", EACH, "at_grid_edge"),))


def fitted(name: str, *, analysis: str = "analyze", **fit: Any) -> AnswerPath:
    """A number of a curve in ``cbs analyze``, which counts where its verdict is ok: the interval
    does not allow for a learning rate at the edge of the grid, or for points that are off the curve."""
    return AnswerPath(analysis=analysis, path=("fits", fit, name), ok=(("fits", fit, "verdict"),))


def larger_critical(larger: str, smaller: str, published: str, source: str) -> Expectation:
    """That one optimizer's critical batch size exceeds another's, from ``cbs compare`` called ``compare``."""
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
    """That one optimizer ends lower than another at a batch size, from ``cbs budget`` called ``budget``, whose pairs
    are in the order of the names."""
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
    """The final loss under a schedule less that of a constant batch size, or another field of their comparison, from
    ``cbs schedule losses`` called ``losses``."""
    entry: dict[str, Any] = {"schedule": schedule, "batch_size": batch_size}
    path: tuple[Step, ...] = ("entries", entry, "against", {"batch_size": against}, *([field] if field else []))
    return AnswerPath(analysis="losses", path=path, exact=bool(field))


def steps_saved(schedule: str, batch_size: int, against: int, share: float, published: str, source: str) -> Expectation:
    """That a schedule saves a share of the steps of a constant batch size."""
    return Expectation(
        claim=f"{schedule} from batch size {batch_size} saves steps against the constant {against}",
        published=published,
        source=source,
        relation=Near((share,), 0.02),
        ours=(schedule_less(schedule, batch_size, against, "steps_saved"),),
    )
