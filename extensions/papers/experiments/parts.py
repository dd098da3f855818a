"""Common parts of several papers' recipes: workloads, sweeps, and statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from cbs.registry.choices import Choice, parse_choice
from cbs.trial.target import Target
from extensions.papers.experiments import (
    Beyond,
    Expectation,
    Likely,
    Measured,
    Near,
    NoSuchNumber,
    OurNumber,
    RecipeRun,
    nth,
    only,
)
from sweeps.spec.axes import Axes
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import Sweep, prototype

if TYPE_CHECKING:  # recipes are listed without an import of pandas
    from analysis.estimate.result import Answer
    from analysis.present.findings import Analysis
    from analysis.quantities import Quantity
    from analysis.questions.compare.optimizers import Comparisons

COSINE = ScheduleRule(name="cosine")

# For final losses and accuracies of tiny runs, which scatter by more than a finer learning rate could gain
SEEDS: dict[str, Any] = {"seeds": tuple(range(8)), "lr_resolution": 1.4}
TWELVE = SEEDS | {"seeds": tuple(range(12))}  # where the intervals of eight end just beyond zero

FEW = "a first run had two or three seeds, and further batch sizes that no statement needs; its intervals held both " \
    "answers"  # fmt: skip

TEXT = Choice(name="text")  # Byte-level model of the embedded text with a context of 32 bytes and 29,856 parameters

# Token files of OpenWebText as nanoGPT prepares them
OPENWEBTEXT = {
    "data": "data/openwebtext/train.bin", "validation": "data/openwebtext/val.bin", "dtype": "uint16",
    "vocab_size": 50257,
}  # fmt: skip

AUTO = Choice(name="auto")  # Probe that measures as often as suits the batch size

# Probe for every second step: tiny runs take about a hundred steps, and an interval needs tens of measurements
PROBE = Choice(name="auto", options={"every": 2})

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


def one_run(name: str, sweep: Sweep, tiny: bool, goal: float | None = None, **published: Any) -> RecipeRun:
    """Return a run; at the scale of the paper with the published facts about its model. A tiny one with a ``goal``
    finds its batch sizes, and goes on until ln B_crit is known up to that: statements about B_crit cost least so."""
    if not tiny:
        return RecipeRun(name=name, sweep=sweep, **published)
    if goal is None:
        return RecipeRun(name=name, sweep=sweep)
    return RecipeRun(name=name, sweep=sweep, policy=Choice(name="precision", options={"goal": goal, "finds": True}))


def classifier(name: str, classes: int, channels: int, size: int, norm: str = "batch") -> Callable[[], nn.Module]:
    """Return a function that builds an image classifier; the workload itself could not without its data."""
    from extensions.papers.image_parts.models import build_classifier

    return lambda: build_classifier(name, classes=classes, channels=channels, size=size, norm=norm)


def among_sizes(optimizer: str, name: str, number: Callable[[Any], Quantity], *, budget: int = -1) -> OurNumber:
    """Return a number of the answer ``budget`` (``cbs budget``) that compares the batch sizes of an optimizer. It
    counts only if no best learning rate lies at the edge of the grid, as such a batch size, which is not compared, may
    be the best."""

    def measured(budgets: Any) -> Measured:
        of = only(nth(budgets.budgets, budget).optimizers, optimizer=optimizer)
        return Measured(name, number(of), {f"at_grid_edge of {optimizer}": any(size.at_grid_edge for size in of.sizes)})

    return OurNumber(question="budget", of=measured)


def excess(optimizer: str, batch_size: int) -> OurNumber:
    """Return how much worse an optimizer ends at a batch size than at its best one."""
    return among_sizes(optimizer, "excess", lambda of: only(of.sizes, batch_size=batch_size).excess)


def fitted(
    name: str, *, question: str = "analyze", optimizer: str | None = None, target: float | None = None
) -> OurNumber:
    """Return an attribute of every curve of ``cbs analyze``, or of that of an optimizer and target. It counts only if
    the verdict is ``ok``, as its interval does not allow for a learning rate at the edge of the grid, or for points
    that are off the curve."""

    def measured(analysis: Analysis) -> list[Measured]:
        verdict = "verdict" if optimizer is None else f"verdict of {optimizer}"
        return [Measured(name, getattr(fit, name), {verdict: fit.verdict}) for fit in fits(analysis, optimizer, target)]

    return OurNumber(question=question, of=measured)


def fits(analysis: Analysis, optimizer: str | None, target: float | None = None) -> list[Answer]:
    """Return all answers of an analysis, or the one of an optimizer and target."""
    fitting = [
        fit
        for fit in analysis.answers
        if optimizer in (None, fit.group.optimizer) and target in (None, fit.target.value)
    ]
    if not fitting or (len(fitting) > 1 and optimizer is not None):
        raise NoSuchNumber(f"{len(fitting)} entries have optimizer {optimizer}, target {target}")
    return fitting


def larger_critical(larger: str, smaller: str, published: str, source: str) -> Expectation:
    """Return the statement that the critical batch size of one optimizer exceeds that of another, from the answer
    ``compare`` (``cbs compare``)."""

    def measured(comparisons: Comparisons) -> Measured:
        pair = only(nth(comparisons.comparisons, 0).critical_batch_sizes, larger=larger, smaller=smaller)
        return Measured("probability", pair.probability, {f"verdict of {larger}, {smaller}": pair.verdict})

    return Expectation(
        claim=f"the critical batch size of {larger} is larger than that of {smaller}",
        published=published,
        source=source,
        relation=Likely(),
        ours=(OurNumber(question="compare", of=measured),),
    )


def lower_loss(
    better: str, worse: str, batch_size: int, published: str, source: str, *, question: str = "budget"
) -> Expectation:
    """Return the statement that one optimizer ends at a lower loss than another at a batch size, from ``cbs budget``,
    whose pairs are in alphabetical order."""
    first, other = sorted((better, worse))

    def measured(budgets: Any) -> Measured:
        pair = only(nth(budgets.budgets, -1).pairs, optimizer=first, other=other)
        return Measured("difference", only(pair.at, batch_size=batch_size))

    return Expectation(
        claim=f"{better} ends below {worse} at batch size {batch_size}",
        published=published,
        source=source,
        relation=Beyond(0.0, above=better == other),
        ours=(OurNumber(question=question, of=measured),),
    )


def compared(losses: Any, schedule: str, batch_size: int, against: int) -> Any:
    """Return the comparison of a schedule with a constant batch size in the answer ``losses`` (``cbs schedule
    judge``)."""
    return only(only(losses.entries, schedule=schedule, batch_size=batch_size).against, batch_size=against)


def schedule_less(schedule: str, batch_size: int, against: int) -> OurNumber:
    """Return a schedule's final loss minus that of a constant batch size."""
    return OurNumber(
        question="losses", of=lambda losses: Measured("difference", compared(losses, schedule, batch_size, against))
    )


def steps_saved(schedule: str, batch_size: int, against: int, share: float, published: str, source: str) -> Expectation:
    """Return the statement that a schedule saves a fraction of the steps of a constant batch size."""

    def measured(losses: Any) -> Measured:
        return Measured("steps_saved", compared(losses, schedule, batch_size, against).steps_saved)

    return Expectation(
        claim=f"{schedule} from batch size {batch_size} saves steps against the constant {against}",
        published=published,
        source=source,
        relation=Near((share,), 0.02),
        ours=(OurNumber(question="losses", of=measured, exact=True),),
    )
