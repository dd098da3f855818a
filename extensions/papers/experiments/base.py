"""Parts of a recipe of a paper: sweeps, their analyses, and the results that the paper states."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from extensions.papers.experiments.relations import PublishedRelation
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.staged import PolicyStage, StagedPolicy
from sweeps.spec.spec import Sweep

SCALES = ("tiny", "paper")

Step = str | int | Mapping[str, Any]
"""Step of a path into JSON: a key of an object; an index of a list; or keys with values that select one list entry."""

EACH: Mapping[str, Any] = {}
"""Step that selects every entry of a list; only for the last list of a path."""

_PLACE = re.compile(r"\{(\w+)\}")


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


@dataclass(frozen=True, kw_only=True)
class AnswerPath:
    """Position of a measured number in the JSON of an analysis.

    Attributes:
        analysis: name of the analysis.
        path: path to the number, or to an object with ``value`` and ``interval``. The interval of a number is
            ``NAME_interval`` beside it, or ``interval`` beside ``value``, ``critical_batch_size``, ``ratio`` or ``lr``.
        over: number by which it is divided, from independent runs; ``None`` for none.
        exact: whether the number has no noise, so that its interval is the number itself.
        ok: paths to verdicts that have to be ``ok``, flags that have to be false, or counts that have to be 0, for the
            number to be valid.
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
        claim: the statement in a sentence.
        published: the published numbers and what they measure.
        source: section, table or figure with these numbers, and whether they were read there or in a summary.
        relation: relation that our numbers have to the published ones if the statement holds.
        ours: positions of our numbers, in order.
    """

    claim: str
    published: str
    source: str
    relation: PublishedRelation
    ours: tuple[AnswerPath, ...]


@dataclass(frozen=True, kw_only=True)
class PaperRecipe(StagedPolicy):
    """The experiment of a paper at one scale: a policy that follows those of its runs, one after the other.

    Attributes:
        title: topic of the experiment, in a line.
        paper: authors, year and number of the paper.
        protocol: description of the runs, in a sentence or two.
        deviations: differences from the paper, one sentence each.
        runs: the sweeps, in order.
        analyses: command lines by name, without a leading ``cbs``; ``{NAME}`` stands for the folder of a run and
            ``{output}`` for that of the recipe.
        expectations: statements of the paper.
        figure: name of the analyses' file, without suffix, with the figure of the paper.
        minutes: planned duration on two cores; ``None`` if it needs a cluster.

    Raises:
        ConfigError: if two runs have one name, or a start, an analysis or an expectation names one that is missing.
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
            raise ConfigError(f"recipe {self.title!r} has two runs with the same name: {', '.join(names)}")
        for place, run in enumerate(self.runs):
            if (after := run.sweep.start.after) and after not in names[:place]:
                raise ConfigError(
                    f"recipe {self.title!r}: run {run.name} starts from {after!r}, which is not an earlier run"
                )
        for line in self.analyses.values():
            for place in _PLACE.findall(line):
                if place not in (*names, "output"):
                    raise ConfigError(f"recipe {self.title!r}: {line!r} names a run {place!r}, which it does not have")
        for reading in (part for each in self.expectations for part in each.ours):
            for one in (reading, reading.over):
                if one is not None and one.analysis not in self.analyses:
                    raise ConfigError(f"recipe {self.title!r} reads from {one.analysis!r}, which is not its analysis")

    def stages(self, sweep: Sweep, folder: Path) -> list[PolicyStage]:
        return [
            PolicyStage(run.name, POLICIES.make(run.policy.name, **run.policy.options), run.sweep, folder / run.name)
            for run in self.runs
        ]
