"""What a recipe of a paper is made of: sweeps, analyses of them, and what the paper says should come out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from sweeps.papers.relations import PublishedRelation
from sweeps.spec.spec import Sweep

SCALES = ("tiny", "paper")

Step = str | int | Mapping[str, Any]
"""Into JSON: a key of an object; a place in a list; what the one entry of a list has, or every entry for ``EACH``."""

EACH: Mapping[str, Any] = {}
"""Every entry of a list; only the last list of a path."""

_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class RecipeRun:
    """A sweep of a recipe.

    Attributes:
        name: of its folder, a word.
        sweep: what is run.
        policy: one of :data:`sweeps.launching.policies.POLICIES`: which sweep comes next.
        parameters: published number of parameters of its model; ``None`` where there is none.
        without_embeddings: whether that leaves the embeddings out.
        tokens_per_example: on average, where the length of examples changes along a run.
        parent: name of an earlier run of one trial that keeps one checkpoint: every trial of this run starts from it,
            without the state of its optimizer; empty for fresh weights.
        model: builds it, where the workload cannot without its data; ``None`` for the workload's own.
    """

    name: str
    sweep: Sweep
    policy: Choice = field(default_factory=lambda: Choice(name="once"))
    parameters: float | None = None
    without_embeddings: bool = False
    tokens_per_example: float | None = None
    parent: str = ""
    model: Callable[[], nn.Module] | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerPath:
    """Where in the JSON of an analysis a number of ours stands.

    Attributes:
        analysis: which one.
        path: to the number. Its interval is that of the object it is the value of, or stands beside it as
            ``NAME_interval``, or as ``interval`` beside ``value``, ``critical_batch_size``, ``ratio`` and ``lr``.
        over: a number that it is divided by, of runs that are independent of it.
        exact: whether the number has no noise, so that it is its own interval.
        ok: paths to verdicts of the analysis that have to be ``ok``, flags that have to be false, or counts that have
            to be 0, for the number to mean what it says.
    """

    analysis: str
    path: tuple[Step, ...]
    over: AnswerPath | None = None
    exact: bool = False
    ok: tuple[tuple[Step, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A statement of the paper that the recipe looks for.

    Attributes:
        claim: in a sentence.
        published: the numbers, with what they are of.
        source: where they stand, and whether they were read there or in a summary.
        relation: what they say about ours.
        ours: where our number is; several are taken in their order.
    """

    claim: str
    published: str
    source: str
    relation: PublishedRelation
    ours: tuple[AnswerPath, ...]


@dataclass(frozen=True, kw_only=True)
class PaperRecipe:
    """The experiment of a paper at one scale.

    Attributes:
        title: what is found out, in a line.
        paper: authors, year and number.
        protocol: what is run, in a sentence or two.
        deviations: what differs from the paper, a sentence each.
        runs: the sweeps, in their order.
        analyses: command lines by name, without the ``cbs`` before them; ``{NAME}`` stands for the folder of a run and
            ``{output}`` for that of the recipe.
        expectations: what the paper found.
        figure: name of the paper's figure, without its suffix, among the files of the analyses.
        minutes: that it is planned to take on two cores; ``None`` where it is for a cluster.

    Raises:
        ConfigError: if a run is there twice, or an analysis or a reading names one that is not there.
    """

    title: str
    paper: str
    protocol: str
    deviations: tuple[str, ...] = ()
    runs: tuple[RecipeRun, ...] = ()
    analyses: Mapping[str, str] = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()
    figure: str = ""
    minutes: float | None = None

    def __post_init__(self) -> None:
        names = [run.name for run in self.runs]
        if len(set(names)) < len(names):
            raise ConfigError(f"recipe {self.title!r} has two runs of one name: {', '.join(names)}")
        for place, run in enumerate(self.runs):
            if run.parent and run.parent not in names[:place]:
                raise ConfigError(f"recipe {self.title!r}: run {run.name} starts from {run.parent!r}, no run before it")
        for line in self.analyses.values():
            for place in _PLACE.findall(line):
                if place not in (*names, "output"):
                    raise ConfigError(f"recipe {self.title!r}: {line!r} names a run {place!r} that is not there")
        for reading in (part for each in self.expectations for part in each.ours):
            for one in (reading, reading.over):
                if one is not None and one.analysis not in self.analyses:
                    raise ConfigError(f"recipe {self.title!r} reads from {one.analysis!r}, which is no analysis of it")
