"""Parameters of the definitions that are laws across targets, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.estimate.definitions import DEFINITIONS, chosen
from analysis.estimate.estimates import Critical, sample
from analysis.estimate.fitting import interval
from cbs.store import finite_or_none

if TYPE_CHECKING:
    from analysis.estimate.result import Answer


def family(answer: Answer, answers: Sequence[Answer]) -> list[Answer]:
    """The answers of the same trials at every target, ``answer`` among them."""
    return [other for other in answers if other.group is answer.group or other.group == answer.group]


def parameters(answers: Sequence[Answer]) -> dict[str, dict[str, dict[str, Any]]]:
    """Definition -> parameter -> ``value`` and ``interval``, of the targets of one optimizer.

    Args:
        answers: one optimizer at one or more targets, see :func:`family`.

    Returns:
        Only the definitions that have parameters at these targets. A value is ``None`` where the data do not bound it,
        an open end of an interval likewise.
    """
    fitted = [answer for answer in answers if answer.fit is not None]
    if not fitted:
        return {}
    config = fitted[0].config
    definitions = chosen(config)
    measured = [sample(answer.fit, answer.target.value) for answer in fitted]
    drawn = [sample(answer.fit, answer.target.value, resampled=True) for answer in fitted]
    found = {}
    for name in DEFINITIONS:
        definition = definitions[name]
        values, resampled = definition.parameters(measured), definition.parameters(drawn)
        if values:
            found[name] = {
                key: {
                    "value": finite_or_none(float(value[0])),
                    "interval": list(interval(resampled[key], config.confidence)) if key in resampled else [None, None],
                }
                for key, value in values.items()
            }
    return found


def critical_to_json(answer: Answer, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Every definition at one target as plain JSON values, with ``parameters`` where it has any."""
    laws = parameters(family(answer, answers))
    return [entry.to_json() | _given(laws, entry) for entry in answer.estimate.critical.values()]


def _given(laws: dict[str, dict[str, dict[str, Any]]], entry: Critical) -> dict[str, Any]:
    return {"parameters": laws[entry.definition]} if entry.definition in laws else {}
