"""Recipes of papers: a function per file that returns the sweeps, analyses and statements of a paper.

``cbs recipes`` lists them, ``cbs reproduce`` runs one. A recipe is called with its scale, ``"tiny"`` or ``"paper"``.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from analysis.quantities import Quantity
from cbs.errors import ConfigError, DataError
from cbs.registry import Registry
from cbs.registry.choices import Choice
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.staged import PolicyStage, StagedPolicy
from sweeps.spec.spec import Sweep

SCALES = ("tiny", "paper")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RecipeRun:
    """A sweep of a recipe.

    Attributes:
        name: name of its folder, one word.
        sweep: the sweep.
        policy: one of :data:`sweeps.launching.policies.POLICIES`, which decides what sweep follows.
        parameters: published number of parameters of its model; ``None`` if none is published.
        without_embeddings: whether that number excludes the embeddings.
        tokens_per_example: mean number, if the length of examples changes along a run; ``None`` for the workload's.
        model: function that builds the model, if the workload cannot without its data; ``None`` for the workload's.
    """

    name: str
    sweep: Sweep
    policy: Choice = field(default_factory=lambda: Choice(name="once"))
    parameters: float | None = None
    without_embeddings: bool = False
    tokens_per_example: float | None = None
    model: Callable[[], nn.Module] | None = None


@dataclass(frozen=True)
class Question:
    """A question about the results of a recipe, see :func:`asks`.

    Attributes:
        name: one of :data:`extensions.papers.reproducing.asking.QUESTIONS`.
        runs: names of the runs that it reads, each with a subfolder after a slash if need be; ``"."`` for all of them.
        options: what else its function takes, by the names of the options of ``cbs``.
        every_figure: whether all figures are drawn, not only the main ones.
    """

    name: str
    runs: tuple[str, ...]
    options: Mapping[str, Any]
    every_figure: bool = False


def asks(name: str, *runs: str, every_figure: bool = False, **options: Any) -> Question:
    """Return a :class:`Question`."""
    return Question(name, runs, options, every_figure)


class NoSuchNumber(DataError):
    """Raised if an answer lacks a number; the message says which."""


@dataclass(frozen=True)
class Measured:
    """A number of an answer.

    Attributes:
        name: what it is called in a message.
        number: the number, or with its interval; ``None`` if the answer has no value for it.
        valid_if: verdicts that have to be ``ok``, flags that have to be false and counts that have to be 0, by name.
    """

    name: str
    number: Quantity | float | None
    valid_if: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OurNumber:
    """Which number of an answer is compared with the published one.

    Attributes:
        question: the recipe's name of the question.
        of: function that takes the answer and returns the number, or several.
        over: number by which it is divided, from independent runs; ``None`` for none.
        exact: whether the number has no noise, so that its interval is the number itself.
    """

    question: str
    of: Callable[[Any], Measured | Sequence[Measured]]
    over: OurNumber | None = None
    exact: bool = False


def only(entries: Iterable[T], **having: Any) -> T:
    """Return the only entry of an answer whose attributes have these values.

    Raises:
        NoSuchNumber: if there is none, or more than one.
    """
    fitting = [each for each in entries if all(getattr(each, name) == value for name, value in having.items())]
    if len(fitting) != 1:
        wanted = ", ".join(f"{name} {value}" for name, value in having.items())
        raise NoSuchNumber(f"{len(fitting)} entries have {wanted}")
    return fitting[0]


def nth(entries: Sequence[T], index: int) -> T:
    """Return an entry of an answer by its place, or raise ``NoSuchNumber``."""
    try:
        return entries[index]
    except IndexError:
        raise NoSuchNumber(f"there is no entry {index} of {len(entries)}") from None


class Reproduced(StrEnum):
    """Whether a published statement was found again."""

    YES = "reproduced"
    NO = "differs"
    UNKNOWN = "cannot be told at this scale"


class PublishedRelation(ABC):
    """Base class of what a published statement says about numbers that can be measured."""

    @abstractmethod
    def verdict(self, numbers: Sequence[Quantity]) -> Reproduced:
        """Return the verdict on one or several numbers that all have a value; an open end of an interval counts as
        infinite."""

    def unfit(self, numbers: Sequence[Quantity]) -> str:
        """Return why the numbers cannot be compared with the statement; empty if they can."""
        return ""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Near(PublishedRelation):
    """The numbers lie within a tolerance of the published ones: reproduced if all intervals lie inside it, different if
    one lies outside.

    Attributes:
        values: published values, one for each number.
        tolerance: largest difference, in the unit of the numbers; 0 if they must be equal.
    """

    values: tuple[float, ...]
    tolerance: float

    def unfit(self, numbers: Sequence[Quantity]) -> str:
        short = len(numbers) != len(self.values)
        return f"{len(self.values)} numbers are published, and the analysis has {len(numbers)}" if short else ""

    def verdict(self, numbers: Sequence[Quantity]) -> Reproduced:
        if self.unfit(numbers):
            return Reproduced.UNKNOWN
        ends = [_ends(each) for each in numbers]
        bands = [(value - self.tolerance, value + self.tolerance) for value in self.values]
        pairs = list(zip(ends, bands, strict=True))
        if any(high < least or low > most for (low, high), (least, most) in pairs):
            return Reproduced.NO
        inside = all(least <= low and high <= most for (low, high), (least, most) in pairs)
        return Reproduced.YES if inside else Reproduced.UNKNOWN

    def __str__(self) -> str:
        listed = ", ".join(f"{value:g}" for value in self.values)
        return f"{listed}, exactly" if self.tolerance == 0 else f"{listed} within {self.tolerance:g}"


@dataclass(frozen=True)
class Beyond(PublishedRelation):
    """Every number lies on one side of a bound: reproduced if all intervals do, different if one is on the other side.

    Attributes:
        bound: bound in the unit of the numbers: 0 for the sign of a difference, 1 for the direction of a ratio.
        above: whether the numbers lie above the bound; otherwise below.
    """

    bound: float
    above: bool = True

    def verdict(self, numbers: Sequence[Quantity]) -> Reproduced:
        ends = [_ends(each) for each in numbers]
        if not self.above:
            ends = [(-high, -low) for low, high in ends]
        bound = self.bound if self.above else -self.bound
        if any(high < bound for _, high in ends):
            return Reproduced.NO
        return Reproduced.YES if ends and all(low > bound for low, _ in ends) else Reproduced.UNKNOWN

    def __str__(self) -> str:
        return f"{'above' if self.above else 'below'} {self.bound:g}"


@dataclass(frozen=True)
class Likely(PublishedRelation):
    """The numbers are probabilities of the statement: reproduced if all are at least ``level``, different if one is at
    most 1 - ``level``."""

    level: float = 0.95

    def verdict(self, numbers: Sequence[Quantity]) -> Reproduced:
        values = [each.value for each in numbers if each.value is not None]
        if any(value <= 1.0 - self.level for value in values):
            return Reproduced.NO
        return Reproduced.YES if values and min(values) >= self.level else Reproduced.UNKNOWN

    def __str__(self) -> str:
        return f"with probability {self.level:g} or more"


@dataclass(frozen=True)
class Monotone(PublishedRelation):
    """The numbers rise, or fall, in order, judged where intervals do not overlap: different if one is behind the one
    before it, or the last behind the first; reproduced if the last is beyond the first and all have a closed end."""

    rising: bool = True

    def verdict(self, numbers: Sequence[Quantity]) -> Reproduced:
        ends = [_ends(each) for each in numbers]
        if not self.rising:
            ends = [(-high, -low) for low, high in ends]
        if len(ends) < 2:
            return Reproduced.UNKNOWN
        back = any(after[1] < before[0] for before, after in itertools.pairwise(ends))
        if back or ends[-1][1] < ends[0][0]:
            return Reproduced.NO
        bounded = all(math.isfinite(low) or math.isfinite(high) for low, high in ends)
        return Reproduced.YES if bounded and ends[-1][0] > ends[0][1] else Reproduced.UNKNOWN

    def __str__(self) -> str:
        return "rising" if self.rising else "falling"


def _ends(quantity: Quantity) -> tuple[float, float]:
    low, high = quantity.interval
    return -math.inf if low is None else low, math.inf if high is None else high


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A statement of the paper that the recipe looks for.

    Attributes:
        claim: the statement in a sentence.
        published: the published numbers and what they measure.
        source: section, table or figure with these numbers, and whether they were read there or in a summary.
        relation: relation that our numbers have to the published ones if the statement holds.
        ours: our numbers, in order.
    """

    claim: str
    published: str
    source: str
    relation: PublishedRelation
    ours: tuple[OurNumber, ...]


@dataclass(frozen=True, kw_only=True)
class PaperRecipe(StagedPolicy):
    """The experiment of a paper at one scale: a policy that follows those of its runs, one after the other.

    Attributes:
        title: topic of the experiment, in a line.
        paper: authors, year and number of the paper.
        protocol: description of the runs, in a sentence or two.
        deviations: differences from the paper, one sentence each.
        runs: the sweeps, in order.
        analyses: the questions by name.
        expectations: statements of the paper.
        figure: name of the answers' file, without suffix, with the figure of the paper.
        minutes: planned duration on two cores; ``None`` if it needs a cluster.

    Raises:
        ConfigError: if two runs have one name, or a start, a question or an expectation names one that is missing.
    """

    title: str
    paper: str
    protocol: str
    deviations: tuple[str, ...] = ()
    runs: tuple[RecipeRun, ...] = ()
    analyses: Mapping[str, Question] = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()
    figure: str = ""
    minutes: float | None = None

    def __post_init__(self) -> None:
        names = [run.name for run in self.runs]
        if len(set(names)) < len(names):
            raise ConfigError(f"recipe {self.title!r} has two runs with the same name: {', '.join(names)}")
        for index, run in enumerate(self.runs):
            if (after := run.sweep.start.after) and after not in names[:index]:
                raise ConfigError(
                    f"recipe {self.title!r}: run {run.name} starts from {after!r}, which is not an earlier run"
                )
        for question in self.analyses.values():
            for run_name in (path.split("/")[0] for path in question.runs):
                if run_name not in (*names, "."):
                    raise ConfigError(
                        f"recipe {self.title!r}: {question.name} names a run {run_name!r}, which it does not have"
                    )
        for reading in (part for each in self.expectations for part in each.ours):
            for one in (reading, reading.over):
                if one is not None and one.question not in self.analyses:
                    raise ConfigError(f"recipe {self.title!r} reads from {one.question!r}, which is not its question")

    def stages(self, sweep: Sweep, folder: Path) -> list[PolicyStage]:
        return [
            PolicyStage(run.name, POLICIES.make(run.policy.name, **run.policy.options), run.sweep, folder / run.name)
            for run in self.runs
        ]


PAPERS: Registry[Callable[[str], PaperRecipe]] = Registry(
    "recipe of a paper", "extensions.papers.experiments", makes=PaperRecipe
)
