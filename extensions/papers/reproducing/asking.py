"""The questions that recipes ask: each a function of results that returns a frozen answer, and what a reading takes
out of it."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.config import DEFAULT, AnalysisConfig
from analysis.quantities import Quantity
from cbs.registry.extensions import load
from extensions.papers.experiments import NoSuchNumber, OurNumber, Question

FLAGS = {
    "targets": "target", "optimizers": "optim", "powers": "power", ("schedule judge", "metric"): "target",
}  # fmt: skip
"""Options whose flag has another name, for one question or for all."""

REPEATED = ("target", "against", "vary", "optim")
"""Flags that are given once for every value; other lists are one text with commas."""


def _compare(folder: Path, *, config: AnalysisConfig, throughput: str | None = None, **options: Any) -> Any:
    from analysis.command_options import times_of
    from analysis.questions.compare.optimizers import compare

    return compare(folder, config, throughput=times_of(throughput), **options)


def _recommend(folder: Path, *, config: AnalysisConfig, devices: int, throughput: str) -> Any:
    from analysis.command_options import times_of

    wish = load("extensions.recommending.plans").Wish(devices=devices)
    return load("extensions.recommending.recommendations").recommend(folder, times_of(throughput), wish, config)


def _scale(*folders: Path, config: AnalysisConfig, definition: str, **options: Any) -> Any:
    from analysis.command_options import config_of

    chosen = config_of([definition])
    config = dataclasses.replace(config, definition=chosen.definition, options=chosen.options)
    return load("extensions.scale.scaling").scale(folders, config, **options)


QUESTIONS: dict[str, tuple[Callable[..., Any] | str, str]] = {
    "analyze": ("analysis.questions.analyze.critical_batch_sizes:analyze", "analysis"),
    "budget": ("extensions.budget.equal_budgets:budget", "analysis/budget"),
    "compare": (_compare, "analysis/compare"),
    "local": ("extensions.branching.local_batch_sizes:local", "analysis/local"),
    "lr": ("extensions.lr.learning_rates:learning_rates", "analysis/lr"),
    "recommend": (_recommend, "analysis/recommend"),
    "scale": (_scale, "analysis/scaling"),
    "schedule judge": ("extensions.schedules.judge:judge", "analysis/schedules"),
    "theory quadratic": ("extensions.theory.quadratic:quadratic", ""),
    "theory quadratic --as-published": ("extensions.theory.quadratic:as_notebook", ""),
    "theory temperature": ("extensions.theory.temperature:temperature", "analysis/temperature"),
}
"""Every question by the words after ``cbs``: its function, or module and name of one that takes folders and options as
they are, as other extensions may be missing; and the folder in that of the first run where its answer is written, none
where it reads no run."""


def answer(
    question: Question, output: Path, *, config: AnalysisConfig = DEFAULT, draw: bool = True
) -> tuple[Any, tuple[Path, ...]]:
    """Return the answer to a question, and the files to which it was written, see :func:`analysis.present.write`.

    Args:
        question: the question.
        output: folder of the recipe.
        config: confidence and number of draws.
        draw: whether figures are drawn.

    Raises:
        CbsError: any error of the question, or if the files cannot be written.
    """
    from analysis import present
    from analysis.present.figures import save_figure

    function, place = QUESTIONS[question.name]
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function = getattr(load(module), name)
    folders, options = [output / run for run in question.runs], dict(question.options)
    figure = options.pop("figure", None)
    if place:  # the others are in closed form
        options["config"] = config
    found = function(*folders, **options)
    if not place:
        return found, tuple(save_figure(found.fit, output / figure)) if figure and draw else ()
    drawn = "default" if draw else None
    return found, present.write(found, folders[0] / place, figures=drawn, every=question.every_figure)


def command_line(question: Question, output: Path) -> str:
    """Return the command line that answers a question likewise."""
    words = [*question.name.split(), *(str(output / run) for run in question.runs)]
    for name, value in question.options.items():
        texts = [f"{each:g}" if isinstance(each, float) else str(each) for each in _listed(value)]
        flag = f"--{FLAGS.get((question.name, name), FLAGS.get(name, name)).replace('_', '-')}"
        if flag.removeprefix("--") in REPEATED:
            words += [word for text in texts for word in (flag, text)]
        else:
            words += [flag, str(output / value) if name == "figure" else ",".join(texts)]
    return shlex.join([*words, *(["--figures", "default"] if question.every_figure else [])])


def read(answers: Mapping[str, Any], reading: OurNumber) -> tuple[list[Quantity], list[str]]:
    """Return the numbers of a reading, one or several, none if one has no value, and what speaks against them and
    their divisor: what is missing, verdicts that are not ``ok``, and flags that are set.

    Args:
        answers: answers to the questions of the recipe by name.
        reading: which number.

    Raises:
        NoSuchNumber: if an answer has no such entry.
    """
    measured = _listed(reading.of(answers[reading.question]))
    why = [
        f"{name} is {value if isinstance(value, int) else repr(str(value))}"
        for each in measured
        for name, value in each.valid_if.items()
        if value not in ("ok", False)
    ]
    numbers = [each.number if isinstance(each.number, Quantity) else Quantity(each.number) for each in measured]
    lacking = [each.name for each, number in zip(measured, numbers, strict=True) if number.value is None]
    why = [f"{reading.question}: {text}" for text in (*why, *(f"{name} has no value" for name in lacking))]
    found = [] if lacking else [_exact(number) if reading.exact else number for number in numbers]
    if reading.over is None:
        return found, why
    below, why_below = read(answers, reading.over)
    if found and below and len(below) not in (1, len(found)):
        raise NoSuchNumber(f"{len(found)} numbers over {len(below)}")
    pairs = zip(found, below * (len(found) // len(below)), strict=True) if found and below else ()
    return [each.over(other) for each, other in pairs], why + why_below


def _exact(number: Quantity) -> Quantity:
    return Quantity(number.value, (number.value, number.value))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
