"""``cbs reproduce`` as a function: sweeps, analyses, and a verdict for every statement of the paper."""

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
from analysis.quantities import Quantity
from cbs.errors import CbsError, ConfigError
from cbs.files import atomic_file
from cbs.trial.store import Store
from cbs.trial.trial_files import read_timing
from extensions.papers.experiments import PAPERS, SCALES, Expectation, NoSuchNumber, PaperRecipe, Reproduced
from extensions.papers.reproducing.asking import answer, command_line, read
from sweeps.launching.loop import PlannedSweep, carry_out
from sweeps.outlook.progress import Progress
from sweeps.running.resources import Resources
from sweeps.search.search import Limits
from sweeps.spec.overrides import override

VERDICTS = "verdicts.json"
"""File with the verdicts, in the folder of a recipe, see :meth:`Reproduction.to_json`."""

SCHEMA = 2  # Raised when a key changes its name or meaning; older files are refused
DRAWN = (".png", ".pdf")


@dataclass(frozen=True, kw_only=True)
class JudgedExpectation:
    """A statement of a paper with our numbers and the verdict.

    Attributes:
        expectation: the statement.
        found: the measured numbers that could be read.
        verdict: whether they agree with the statement.
        why: reasons why numbers are missing or do not count.
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
    """Result of :func:`reproduce`.

    Attributes:
        name: name of the recipe.
        scale: one of :data:`extensions.papers.experiments.SCALES`.
        recipe: the recipe as it was run.
        judged: a verdict for each of its expectations.
        figures: files with the figure of the paper, relative to ``output``.
        failures: reasons of the analyses that failed, by name.
        command: command line with the same result.
        output: folder of the recipe.
        complete: whether every run has ended, and no trial failed.
        seconds: processor time of all trials and analyses.
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
    """Return a recipe at a scale, with ``settings`` applied to all its sweeps as by ``cbs sweep --set``.

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
    """Run the missing trials of a recipe, analyse the results, and judge every statement of the paper.

    Args:
        name: name in :data:`extensions.papers.experiments.PAPERS`.
        scale: one of :data:`extensions.papers.experiments.SCALES`.
        output: folder of the recipe, with a subfolder for every run; ``None`` for ``results/NAME-SCALE``.
        settings: changes of all sweeps, see :func:`recipe_of`.
        resources: where to run; ``None`` for all cores of this machine.
        limits: limits after which no trial starts; the results so far are then analysed.
        progress: display of the progress; ``None`` for none.
        note: called with every line to show to the user.

    Returns:
        The verdicts, which are also written to :data:`VERDICTS` in the folder.

    Raises:
        CbsError: as :func:`sweeps.launching.loop.run_sweep`. An analysis that fails does not raise: the verdict on its
            statements is then "cannot be told".
    """
    recipe = recipe_of(name, scale, settings)
    output = Path("results") / f"{name}-{scale}" if output is None else output
    Store(output).check_writable()
    resources, limits = resources or Resources(), limits or Limits()
    complete = True
    for run in recipe.runs:
        resources.check_devices(run.sweep.trial.device, command=False)
    if recipe.runs:
        recipe.check(recipe.runs[0].sweep, limits=limits, source=None)
        plan = PlannedSweep(recipe.runs[0].sweep, output, None)
        report = carry_out(plan, recipe, resources=resources, limits=limits, progress=progress, note=note)
        complete = not report.content["failures"]["trials"]
    answers: dict[str, Any] = {}
    failures: dict[str, str] = {}
    files: dict[Path, None] = {}
    began = time.process_time()
    for name_of, question in recipe.analyses.items():
        note(f"cbs {command_line(question, output)}")
        try:
            answers[name_of], written = answer(question, output)
            files |= dict.fromkeys(written)
        except CbsError as error:
            failures[name_of] = str(error)
    analysed = time.process_time() - began
    trained = sum(read_timing(each).get("processor_seconds", 0.0) for each in output.glob("**/trials/*/timing.json"))
    scaled = [] if scale == SCALES[0] else ["--scale", scale]
    command = shlex.join(["cbs", "reproduce", name, *scaled, *(f"--set={each}" for each in settings)])
    outcome = Reproduction(
        name=name,
        scale=scale,
        recipe=recipe,
        judged=tuple(judge(each, answers, failures) for each in recipe.expectations),
        figures=tuple(os.path.relpath(file, output) for file in files if is_figure(file, recipe.figure)),
        failures=failures,
        command=command,
        output=output,
        complete=complete and not limits.reached,
        seconds=trained + analysed,
    )
    store(outcome, output / VERDICTS)
    return outcome


def is_figure(file: Path, figure: str) -> bool:
    """Whether a file is an image of a figure; there may be one per target, as ``steps-loss_below_2.png``."""
    return file.suffix in DRAWN and figure in (file.stem, file.stem.split("-")[0])


def judge(expectation: Expectation, answers: dict[str, Any], failures: dict[str, str]) -> JudgedExpectation:
    """Return the verdict on a statement.

    Args:
        expectation: the statement.
        answers: answers to the questions of the recipe by name.
        failures: reasons of the questions that failed, by name.
    """
    found: list[Quantity] = []
    why: list[str] = []
    for reading in expectation.ours:
        missing = [one.question for one in (reading, reading.over) if one is not None and one.question in failures]
        why += [failures[name] for name in missing[:1]]
        try:
            if not missing:
                numbers, doubts = read(answers, reading)
                found, why = found + numbers, why + doubts
        except NoSuchNumber as error:
            why.append(f"{reading.question}: {error}")
    if not why and (unfit := expectation.relation.unfit(found)):
        why.append(unfit)
    verdict = expectation.relation.verdict(found) if found and not why else Reproduced.UNKNOWN
    return JudgedExpectation(expectation=expectation, found=tuple(found), verdict=verdict, why=(*dict.fromkeys(why),))


def store(outcome: Reproduction, path: Path) -> None:
    """Write the verdicts atomically."""
    with atomic_file(path) as draft:
        draft.write_text(json.dumps(outcome.to_json(), indent=2, allow_nan=False) + "\n")
