"""Settings that an external training program reported; settings it did not report are unknown."""

from collections.abc import Hashable, Sequence
from typing import Any

from cbs.trial.config import COMMAND, OF_TRAINER, UNKNOWN

STATED = "stated"
"""Key of these settings in a configuration that was read."""


def with_stated(config: dict[str, Any], stated: dict[str, Any], *, foreign: bool) -> dict[str, Any]:
    """Return the configuration of a trial with the settings ``stated`` by its program, see
    :attr:`cbs.trial.record.TrialResult.stated`; the warmup is in examples, as for other trials.

    Earlier versions stored defaults for settings that nobody had reported; these are replaced by "unknown", also for
    ``foreign`` trials, which were imported.
    """
    if foreign or config["workload"]["name"] == COMMAND:
        config = config | dict.fromkeys(OF_TRAINER, UNKNOWN)
    if not stated:
        return config
    kept = {name: value for name, value in stated.items() if name != "warmup_steps"}
    if "warmup_steps" in stated:
        kept["warmup_examples"] = stated["warmup_steps"] * config["batch_size"]
    return config | {STATED: kept}


def warmup(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that describes the learning-rate warmup; empty if nothing does."""
    schedule = config.get("schedule")
    return dict(schedule) if isinstance(schedule, dict) else dict(config.get(STATED, {}))


def warmup_steps(config: dict[str, Any]) -> float:
    """Return the warmup steps of the learning rate; 0 if unknown. For a trial that starts from a checkpoint, what its
    parent left of the warmup, or its own."""
    parent = config.get("parent") or {}
    left = warmup(config).get("warmup_examples", 0) - parent.get("examples", 0)
    return float(max(left, parent.get("warmup_examples", 0), 0) / config["batch_size"])


def completed(values: Sequence[str], scopes: Sequence[Hashable]) -> list[str]:
    """Fill in a setting of trials that do not report it (an empty text), from other trials of the same scope if these
    agree, because a program may fail before it reports anything."""
    reported: dict[Hashable, set[str]] = {}
    for value, scope in zip(values, scopes, strict=True):
        reported.setdefault(scope, set()).update({value} - {""})
    agreed = {scope: next(iter(found)) for scope, found in reported.items() if len(found) == 1}
    return [value or agreed.get(scope, "") for value, scope in zip(values, scopes, strict=True)]
