"""What the tables of the page say, as plain values: no HTML here, and no number that an answer does not hold."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.estimate.definitions import DEFINITIONS, in_words
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.noise import PLAIN
from analysis.present.tables import number
from analysis.questions.suggest import suggest

if TYPE_CHECKING:
    from analysis.estimate.estimates import Interval
    from analysis.estimate.result import Answer

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
BREAKS = re.compile(r"[^,_(=/]+[,_(=/]*|[,_(=/]+")

MEANING = {
    "OK": "Nothing is held against this answer: the batch sizes show both ends of the curve, every best learning "
    "rate lies inside the grid that was tried, and there are several seeds.",
    "NOT_REACHED": "No batch size reached the target, so there is no curve and no critical batch size.",
    "TOO_FEW_BATCH_SIZES": "Too few batch sizes reached the target for a curve with an interval.",
    "NO_PERFECT_SCALING": "Even the smallest batch size is beyond the part of the curve where doubling it halves "
    "the steps, so the critical batch size is only known from above.",
    "NO_SATURATION": "Even the largest batch size is short of the part of the curve where larger ones save no "
    "more steps, so the critical batch size is only known from below.",
    "AT_GRID_EDGE": "At some batch size the best learning rate is the lowest or the highest that was tried: a "
    "better one may lie outside, and the steps there may be too many.",
    "NOT_THE_HYPERBOLA": "The points lie further from the fitted curve than their noise explains, so what is read off "
    "the curve is doubtful; definitions that need no fit stand beside it.",
    "ONE_DECIDES": "Without one of the batch sizes the answer would be another one.",
    "TOO_FEW_SEEDS": "There is one seed: the interval comes from how far the points lie from the curve, and a "
    "difference between optimizers may be luck.",
}
"""Of every verdict, by its name, in plain words."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A value with its interval, as text; ``interval`` is empty where it is not known."""

    value: str
    interval: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One answer of the summary.

    Attributes:
        place: counts the answers, from 1.
        scope: sweep and workload.
        critical, min_steps, min_examples, noise_scale, ratio, matched: with their intervals.
        tokens: the critical batch size in tokens; empty where examples have none.
        bar: where value and interval lie on the common axis, 0 to 1; ``None`` where open or undefined.
        definitions: by every definition, with its remark.
        meaning, advice: what the verdict says, and what to change.
    """

    place: int
    sweep: str
    workload: str
    optimizer: str
    target: str
    critical: Number
    tokens: str
    min_steps: Number
    min_examples: Number
    noise_scale: Number
    ratio: Number
    matched: Number | None
    geometry: str
    bar: tuple[float | None, float | None, float | None]
    definitions: tuple[tuple[str, Number, str], ...]
    verdict: str
    fine: bool
    meaning: str
    advice: str


def with_ends(value: float | None, interval: Interval) -> Number:
    """A value and its interval; an open end is 0 or infinity."""
    low, high = interval
    if low is None and high is None:
        return Number(value=number(value))
    ends = f"[{'0' if low is None else number(low)}, {'∞' if high is None else number(high)}]"
    return Number(value=number(value), interval=ends)


def axis(answers: Sequence[Answer]) -> tuple[float, float]:
    """Ends of a common logarithmic axis for critical batch sizes: powers of two around every value and finite end."""
    known = [
        value for answer in answers for value in (answer.critical_batch_size, *answer.interval) if value and value > 0
    ]
    sizes = [float(point.batch_size) for answer in answers for point in answer.points]
    values = known or sizes
    return 2.0 ** math.floor(math.log2(min(values)) - 0.01), 2.0 ** math.ceil(math.log2(max(values)) + 0.01)


def rows(answers: Sequence[Answer]) -> list[Row]:
    """One per answer."""
    low, high = axis(answers)

    def place(value: float | None) -> float | None:
        return None if value is None else (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

    found = []
    for index, answer in enumerate(answers):
        group, size = answer.group, answer.critical_batch_size
        tokens = group.tokens_per_example
        matched = answer.matched_noise_scale
        found.append(
            Row(
                place=index + 1,
                sweep=group.sweep,
                workload=group.workload,
                optimizer=group.optimizer,
                target=str(answer.target),
                critical=with_ends(size, answer.interval),
                tokens=number(size * tokens) if size and tokens else "",
                min_steps=with_ends(answer.min_steps, answer.min_steps_interval),
                min_examples=with_ends(answer.examples_at_critical, answer.examples_at_critical_interval),
                noise_scale=with_ends(answer.noise_scale.value, answer.noise_scale.interval),
                ratio=with_ends(answer.noise_scale_ratio.value, answer.noise_scale_ratio.interval),
                matched=with_ends(matched.value, matched.interval) if answer.matched_geometry != PLAIN else None,
                geometry=answer.matched_geometry,
                bar=(place(answer.interval[0]), place(size), place(answer.interval[1])),
                definitions=tuple(
                    (name, with_ends(entry.value, entry.interval), entry.remark)
                    for name, entry in answer.estimate.critical.items()
                ),
                verdict=str(answer.verdict),
                fine=answer.verdict is Verdict.OK,
                meaning=MEANING[answer.verdict.name],
                advice=answer.advice,
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Described:
    """A definition: its name with its options, one plain sentence, what exactly is computed, and its source."""

    name: str
    called: str
    sentence: str
    exactly: str
    source: str


def definitions(answers: Sequence[Answer]) -> list[Described]:
    """Every definition that was evaluated."""
    found = []
    for name, entry in answers[0].estimate.critical.items():
        kind = DEFINITIONS[name]
        module = inspect.getdoc(sys.modules[kind.__module__]) or ""
        sentence, _, rest = module.partition("\n\n")
        found.append(
            Described(
                name=name,
                called=in_words(name, entry.options),
                sentence=plain(sentence),
                exactly=plain((inspect.getdoc(kind) or "").partition("\n\n")[0]),
                source=", ".join(f"arXiv:{number}" for number in dict.fromkeys(ARXIV.findall(rest))),
            )
        )
    return found


def plain(text: str) -> str:
    """A docstring without its markup."""
    text = re.sub(r":\w+:`([^`]*)`", r"\1", " ".join(text.split())).replace("``", "")
    return text.replace("min_examples", "E_min").replace("min_steps", "S_min")


@dataclass(frozen=True, kw_only=True)
class Next:
    """Suggested trials.

    Attributes:
        optimizer, target: of the answer that they would help.
        reasons: one line each.
        trials: how many, as text.
        cost: examples they take, as text.
        effect: on the width of the interval, as text; empty where that is not known.
        command: that runs them; empty where there is none.
    """

    optimizer: str
    target: str
    reasons: tuple[str, ...]
    trials: str
    cost: str
    effect: str
    command: str


def suggestions(answers: Sequence[Answer]) -> list[Next]:
    """What :func:`analysis.questions.suggest.suggest` says to every answer it has something to say to."""
    found = []
    for answer in answers:
        suggestion = suggest(answer)
        if suggestion is None:
            continue
        batch_sizes, seeds = (", ".join(map(str, values)) for values in (suggestion.batch_sizes, suggestion.seeds))
        count = "" if suggestion.trials is None else f"{suggestion.trials} trials: "
        lrs = "" if suggestion.lrs is None else f", learning rate {', '.join(f'{lr:.4g}' for lr in suggestion.lrs)}"
        factor = suggestion.interval_factor
        found.append(
            Next(
                optimizer=answer.group.optimizer,
                target=str(answer.target),
                reasons=suggestion.reasons,
                trials=f"{count}batch size {batch_sizes}, seed {seeds}{lrs}",
                cost=f"{number(suggestion.cost)} {answer.group.example_unit}s",
                effect="" if factor is None else f"about {number(factor, 2)} times as wide as now, on a log scale",
                command=suggestion.command,
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One row of the points: as many cells as :data:`POINTS` has headings, and whether the target was reached."""

    cells: tuple[str, ...]
    reached: bool


POINTS = (
    "optimizer",
    "batch size",
    "best LR",
    "steps to target",
    "range over seeds",
    "examples to target",
    "seeds",
    "status",
    "noise scale",
)


def points(answers: Sequence[Answer]) -> list[Measured]:
    """One row per optimizer and batch size."""
    found = []
    for answer in answers:
        for point in answer.points:
            noise = answer.noise.get(point.batch_size)
            spread = point.steps_per_seed
            steps = number(point.steps_to_target)
            if not point.reached and point.steps_lower_bound is not None:
                steps = f"> {number(point.steps_lower_bound)}"
            lr = "–" if point.best_lr is None else f"{point.best_lr:.4g}"
            cells = (
                answer.group.optimizer,
                f"{point.batch_size:,}",
                f"{lr} (edge)" if point.at_grid_edge else lr,
                steps,
                f"{number(min(spread))} to {number(max(spread))}" if len(spread) > 1 else "–",
                number(point.examples_to_target),
                f"{point.seeds_reached} of {point.seeds}",
                point.status,
                number(noise.summary.value) if noise else "–",
            )
            found.append(Measured(cells=cells, reached=point.reached))
    return found
