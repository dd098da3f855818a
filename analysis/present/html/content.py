"""What the page says beside its tables, as plain values: no HTML here, and no number that an answer does not hold."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import pandas as pd

from analysis.estimate.definitions import DEFINITIONS, in_words
from analysis.estimate.diagnosis import Verdict
from analysis.present.answers import if_hyperbola
from analysis.present.table import Column, Table

if TYPE_CHECKING:
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
    "FAR_SEED": "One seed took far more or far fewer steps than the others at its batch size; the fit leaves it out, "
    "and the interval holds both readings.",
    "OFF_THE_CURVE": "The points lie further from the fitted curve than their noise explains, so what is read off "
    "the curve is doubtful; definitions that need no fit stand beside it.",
    "ONE_DECIDES": "Without one of the batch sizes the answer would be another one.",
    "TOO_FEW_SEEDS": "There is one seed: the interval comes from how far the points lie from the curve, and a "
    "difference between optimizers may be luck.",
}
"""Of every verdict, by its name, in plain words."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the page says to one answer beside the tables.

    Attributes:
        place: counts the answers, from 1.
        answer: the answer.
        bar: where value and interval lie on the common axis, 0 to 1; ``None`` where open or undefined.
        fine: whether nothing is held against it.
        meaning: what the verdict says.
        hyperbola: what the exponent 1 would say; empty where that is the same.
    """

    place: int
    answer: Answer
    bar: tuple[float | None, float | None, float | None]
    fine: bool
    meaning: str
    hyperbola: str


def axis(answers: Sequence[Answer]) -> tuple[float, float]:
    """Ends of a common logarithmic axis for critical batch sizes: powers of two around every value and finite end."""
    known = [
        value for answer in answers for value in (answer.critical_batch_size, *answer.interval) if value and value > 0
    ]
    sizes = [float(point.batch_size) for answer in answers for point in answer.points]
    values = known or sizes
    return 2.0 ** math.floor(math.log2(min(values)) - 0.01), 2.0 ** math.ceil(math.log2(max(values)) + 0.01)


def judged(answers: Sequence[Answer]) -> list[Judged]:
    """One per answer."""
    low, high = axis(answers)

    def place(value: float | None) -> float | None:
        return None if value is None else (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

    return [
        Judged(
            place=index + 1,
            answer=answer,
            bar=(place(answer.interval[0]), place(answer.critical_batch_size), place(answer.interval[1])),
            fine=answer.verdict is Verdict.OK,
            meaning=MEANING[answer.verdict.name],
            hyperbola=(said := if_hyperbola(answer))[:1].upper() + said[1:],
        )
        for index, answer in enumerate(answers)
    ]


def of_frame(frame: pd.DataFrame) -> Table:
    """A table of a figure's numbers as they are."""

    def text(value: object) -> str:
        return "" if pd.isna(value) else f"{value:.6g}" if isinstance(value, float) else str(value)

    columns = tuple(
        Column(name, itemgetter(place), name, text=text, left=True) for place, name in enumerate(frame.columns)
    )
    return Table(columns=columns, rows=list(frame.itertuples(index=False, name=None)))


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
    for name, entry in answers[0].definitions.items():
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
    return re.sub(r":\w+:`([^`]*)`", r"\1", " ".join(text.split())).replace("``", "")
