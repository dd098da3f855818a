"""``cbs reproduce`` as a function: sweeps, analyses, and a verdict for every statement of the paper."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbs
from analysis.arrays import Quantity
from cbs.errors import CbsError, ConfigError, ResultsError
from cbs.files import atomic_file
from cbs.training.parents import parent_at
from cbs.trial.store import Store
from cbs.trial.trial_files import read_timing
from sweeps.launching.loop import carry_out, prepare
from sweeps.launching.policies import POLICIES
from sweeps.outlook.progress import Progress
from sweeps.papers import PAPERS, SCALES, Expectation, PaperRecipe, RecipeRun, Reproduced
from sweeps.reproducing.asking import ask
from sweeps.reproducing.readings import NoSuchNumber, doubts, read
from sweeps.running.cluster import Resources
from sweeps.search.limits import Limits
from sweeps.spec.overrides import override
from sweeps.spec.spec import Sweep

VERDICTS = "verdicts.json"
"""File of a recipe's verdicts in its folder, see :meth:`Reproduction.to_json`."""

SCHEMA = 2
DRAWN = (".png", ".pdf")


@dataclass(frozen=True, kw_only=True)
class JudgedExpectation:
    """A statement of a paper and what became of it.

    Attributes:
        expectation: the statement.
        found: our numbers; those that could be read.
        verdict: what they say.
        why: why there are not all of them, or why they do not count, a reason each.
    """

    expectation: Expectation
    found: tuple[Quantity, ...]
    verdict: Reproduced
    why: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        each = self.expectation
        return {
            "claim": each.claim,
            "published": each.published,
            "source": each.source,
            "expected": str(each.relation),
            "ours": [{"value": quantity.value, "interval": list(quantity.interval)} for quantity in self.found],
            "verdict": str(self.verdict),
            "why": list(self.why),
        }


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What came of a recipe.

    Attributes:
        name: of the recipe.
        scale: one of :data:`sweeps.papers.SCALES`.
        recipe: as it was run.
        judged: one for each of its expectations.
        figures: files of the paper's figure, from the folder of the recipe.
        failures: analyses that had no answer, with the reason.
        command: command line that does the same.
        output: folder of the recipe.
        complete: whether every run has ended, and no trial of it failed.
        seconds: of a processor, of all its trials and analyses.
    """

    name: str
    scale: str
    recipe: PaperRecipe
    judged: tuple[JudgedExpectation, ...]
    figures: tuple[str, ...]
    failures: dict[str, str]
    command: str
    output: Path
    complete: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA,
            "recipe": self.name,
            "scale": self.scale,
            "title": self.recipe.title,
            "paper": self.recipe.paper,
            "command": self.command,
            "date": datetime.now(UTC).date().isoformat(),
            "version": cbs.__version__,
            "complete": self.complete,
            "seconds": round(self.seconds),
            "verdicts": [each.to_json() for each in self.judged],
            "figures": list(self.figures),
            "failures": self.failures,
        }


def recipe_of(name: str, scale: str, settings: Sequence[str] = ()) -> PaperRecipe:
    """A recipe at a scale, with settings of all its sweeps changed as ``cbs sweep --set`` does.

    Raises:
        ConfigError: if there is no such recipe, scale or setting.
    """
    if scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}: known scales are {', '.join(SCALES)}")
    recipe: PaperRecipe = PAPERS.make(name, scale)
    if not settings:
        return recipe
    if not recipe.runs:
        raise ConfigError(f"recipe {name!r} has no sweep, so there is nothing to --set")
    runs = tuple(replace(run, sweep=override(run.sweep, settings)) for run in recipe.runs)
    return replace(recipe, runs=runs)


def reproduce(
    name: str,
    scale: str = "tiny",
    output: Path | None = None,
    *,
    settings: Sequence[str] = (),
    resources: Resources | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Reproduction:
    """Run what is missing of a recipe, analyse it, and judge every statement of the paper.

    Args:
        name: in :data:`sweeps.papers.PAPERS`.
        scale: one of :data:`sweeps.papers.SCALES`.
        output: folder of the recipe, with one for every run; ``None`` for ``results/NAME-SCALE``.
        settings: changes of all sweeps, see :func:`recipe_of`.
        resources: where to run; ``None`` for all cores of this machine.
        limits: when no trial starts any more; what is there is analysed then.
        progress: shows what happens; ``None`` for silence.
        note: tells a person a line.

    Returns:
        The verdicts, which are also in :data:`VERDICTS` in the folder.

    Raises:
        CbsError: as :func:`sweeps.launching.loop.run_sweep`. An analysis that has no answer is none: the statements
            that it is about cannot be told then.
    """
    recipe = recipe_of(name, scale, settings)
    output = Path("results") / f"{name}-{scale}" if output is None else output
    Store(output).check_writable()
    resources, limits = resources or Resources(), limits or Limits()
    complete = True
    for run in recipe.runs:
        if limits.reached:
            note(f"{limits.reached}: run {run.name} and those after it have no more trials")
            break
        note(f"{run.name}: {output / run.name}")
        policy = POLICIES.make(run.policy.name, **run.policy.options)
        sweep = _from_parent(run, output)
        policy.check(sweep, limits=limits, source=None)
        resources.check_devices(sweep.device, command=False)
        plan = prepare(sweep, sweep, policy, output=output / run.name, resources=resources, note=note)
        report = carry_out(plan, policy, resources=resources, limits=limits, progress=progress, note=note)
        complete &= not report.content.get("failures", {}).get("trials", 0)
    contents: dict[str, Any] = {}
    failures: dict[str, str] = {}
    began = time.process_time()
    for analysis, line in command_lines(recipe, output).items():
        note(f"cbs {line}")
        try:
            contents[analysis] = ask(line)
        except CbsError as error:
            failures[analysis] = str(error)
    analysed = time.process_time() - began
    trained = sum(read_timing(each).get("processor_seconds", 0.0) for each in output.glob("**/trials/*/timing.json"))
    files = dict.fromkeys(file for content in contents.values() for file in content.get("files", ()))
    scaled = [] if scale == SCALES[0] else ["--scale", scale]
    command = shlex.join(["cbs", "reproduce", name, *scaled, *(f"--set={each}" for each in settings)])
    outcome = Reproduction(
        name=name,
        scale=scale,
        recipe=recipe,
        judged=tuple(judge(each, contents, failures) for each in recipe.expectations),
        figures=tuple(os.path.relpath(file, output) for file in files if is_figure(file, recipe.figure)),
        failures=failures,
        command=command,
        output=output,
        complete=complete and not limits.reached,
        seconds=trained + analysed,
    )
    store(outcome, output / VERDICTS)
    return outcome


def _from_parent(run: RecipeRun, output: Path) -> Sweep:
    """The sweep of a run, its trials starting from the checkpoint that the run before it keeps, if it names one."""
    if not run.parent:
        return run.sweep
    kept = sorted((output / run.parent).glob("kept/*/*.pt"))
    if len(kept) != 1:
        raise ResultsError(f"{output / run.parent} keeps {len(kept)} checkpoints, and run {run.name} starts from one")
    return run.sweep.replace(parent=replace(parent_at(kept[0]), optimizer="reset"))


def is_figure(file: str, figure: str) -> bool:
    """Whether a file is the picture of a figure, of which there may be one for every target: ``steps-loss_below_2``."""
    return file.endswith(DRAWN) and figure in (Path(file).stem, Path(file).stem.split("-")[0])


def command_lines(recipe: PaperRecipe, output: Path) -> dict[str, str]:
    """The analyses of a recipe as command lines with the folders of its runs."""
    places = {run.name: shlex.quote(str(output / run.name)) for run in recipe.runs}
    return {name: line.format(**places, output=shlex.quote(str(output))) for name, line in recipe.analyses.items()}


def judge(expectation: Expectation, contents: dict[str, Any], failures: dict[str, str]) -> JudgedExpectation:
    """A verdict, from what analyses said.

    Args:
        expectation: the statement.
        contents: JSON of analyses by name.
        failures: why the others have none.
    """
    found: list[Quantity] = []
    why: list[str] = []
    for reading in expectation.ours:
        missing = [one.analysis for one in (reading, reading.over) if one is not None and one.analysis in failures]
        why += [failures[name] for name in missing[:1]]
        try:
            if not missing:
                why += doubts(contents, reading)
                found += read(contents, reading)
        except NoSuchNumber as error:
            why.append(str(error))
    if not why and (unfit := expectation.relation.unfit(found)):
        why.append(unfit)
    verdict = expectation.relation.verdict(found) if found and not why else Reproduced.UNKNOWN
    return JudgedExpectation(expectation=expectation, found=tuple(found), verdict=verdict, why=(*dict.fromkeys(why),))


def store(outcome: Reproduction, path: Path) -> None:
    """Write the verdicts, in one piece."""
    with atomic_file(path) as draft:
        draft.write_text(json.dumps(outcome.to_json(), indent=2, allow_nan=False) + "\n")
