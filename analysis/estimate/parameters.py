"""Parameters of the definitions that are laws across targets, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.estimate.definitions import chosen
from analysis.estimate.estimates import known_value
from analysis.estimate.fitting import interval
from analysis.estimate.quantity import OPEN, Quantity
from analysis.estimate.result import Answer
from analysis.estimate.study_fits import sample
from analysis.plain import plain
from cbs.store import finite_or_none


def parameters(answers: Sequence[Answer]) -> dict[str, dict[str, Quantity]]:
    """Definition -> parameter -> its value, of the targets of one optimizer.

    Args:
        answers: one optimizer at one or more targets.

    Returns:
        Only the definitions that have parameters at these targets. A value is ``None`` where the data do not bound it,
        an open end of an interval likewise.
    """
    fitted = [(answer.fit, known_value(answer.target)) for answer in answers if answer.fit is not None]
    if not fitted:
        return {}
    config = answers[0].config
    measured = [sample(fit, target) for fit, target in fitted]
    drawn = [sample(fit, target, resampled=True) for fit, target in fitted]
    found = {}
    for name, definition in chosen(config).items():
        values, resampled = definition.parameters(measured), definition.parameters(drawn)
        if values:
            found[name] = {
                key: Quantity(
                    finite_or_none(float(value[0])),
                    interval(resampled[key], config.confidence) if key in resampled else OPEN,
                )
                for key, value in values.items()
            }
    return found


def critical_to_json(answer: Answer, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Every definition at one target as plain JSON values, with ``parameters`` where it has any.

    Args:
        answer: the one in question.
        answers: it and others; those of the same trials at other targets count.
    """
    laws = parameters([other for other in answers if other.group == answer.group])
    return [
        entry.to_json() | ({"parameters": plain(laws[name])} if name in laws else {})
        for name, entry in answer.definitions.items()
    ]
