"""Recipes of papers: a function per file that returns the sweeps, analyses and statements of a paper.

``cbs recipes`` lists them, ``cbs reproduce`` runs one. A recipe is called with its scale, ``"tiny"`` or ``"paper"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from analysis.quantities import Quantity
from cbs.errors import ConfigError, DataError
from cbs.registry import Registry
from cbs.registry.choices import Choice
from extensions.papers.experiments.relations import Beyond, Likely, Monotone, Near, PublishedRelation, Reproduced
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.staged import PolicyStage, StagedPolicy
from sweeps.spec.spec import Sweep

__all__ = [
    "PAPERS",
    "SCALES",
    "Beyond",
    "Expectation",
    "Likely",
    "Monotone",
    "Near",
    "PaperRecipe",
    "PublishedRelation",
    "RecipeRun",
    "Reproduced",
]

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


def nth(entries: Sequence[T], place: int) -> T:
    """Return an entry of an answer by its place, or raise ``NoSuchNumber``."""
    try:
        return entries[place]
    except IndexError:
        raise NoSuchNumber(f"there is no entry {place} of {len(entries)}") from None


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
        for place, run in enumerate(self.runs):
            if (after := run.sweep.start.after) and after not in names[:place]:
                raise ConfigError(
                    f"recipe {self.title!r}: run {run.name} starts from {after!r}, which is not an earlier run"
                )
        for question in self.analyses.values():
            for run_name in (place.split("/")[0] for place in question.runs):
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
