"""What the page says of its answers beside their tables, as plain values."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

from analysis.estimate.definitions import DEFINITIONS, in_words
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.present.answers import if_hyperbola

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")


def axis(answers: Sequence[Answer]) -> tuple[float, float]:
    """Ends of a common logarithmic axis for critical batch sizes: powers of two around every value and finite end."""
    known = [
        value for answer in answers for value in (answer.critical_batch_size, *answer.interval) if value and value > 0
    ]
    values = known or [float(point.batch_size) for answer in answers for point in answer.points]
    return 2.0 ** math.floor(math.log2(min(values)) - 0.01), 2.0 ** math.ceil(math.log2(max(values)) + 0.01)


def judged(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """What the page says to every answer: whether it is ``fine``, what a ``hyperbola`` would
    say, and where low end, value and high end lie on the common axis, 0 to 1, ``None`` where open or undefined."""
    low, high = map(math.log, axis(answers))
    return [
        {
            "answer": answer,
            "bar": [
                None if value is None else (math.log(value) - low) / (high - low)
                for value in (answer.interval[0], answer.critical_batch_size, answer.interval[1])
            ],
            "fine": answer.verdict is Verdict.OK,
            "hyperbola": if_hyperbola(answer),
        }
        for answer in answers
    ]


def definitions(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """Every definition that was evaluated: its name with its options, one plain sentence, what exactly is computed, and
    its source."""
    found = []
    for name, entry in answers[0].definitions.items():
        kind = DEFINITIONS[name]
        sentence, _, rest = (inspect.getdoc(sys.modules[kind.__module__]) or "").partition("\n\n")
        exactly = (inspect.getdoc(kind) or "").partition("\n\n")[0]
        source = ", ".join(f"arXiv:{number}" for number in dict.fromkeys(ARXIV.findall(rest)))
        called = in_words(name, entry.options)
        found.append({"called": called, "sentence": _plain(sentence), "exactly": _plain(exactly), "source": source})
    return found


def _plain(text: str) -> str:
    """A docstring without its markup."""
    return re.sub(r":\w+:`([^`]*)`", r"\1", " ".join(text.split())).replace("``", "")
