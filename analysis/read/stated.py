"""What a program that trained said of its own settings; of what it did not say nothing is known."""

from __future__ import annotations

from typing import Any

import pandas as pd

from cbs.trial.config import COMMAND, OF_TRAINER, UNKNOWN

STATED = "stated"
"""Where a configuration that was read has them."""


def with_stated(config: dict[str, Any], stated: dict[str, Any], *, foreign: bool) -> dict[str, Any]:
    """The configuration of a trial with what its program said.

    Earlier versions stored defaults for settings that nobody had told.

    Args:
        config: of the record.
        stated: likewise, see :attr:`cbs.trial.record.TrialResult.stated`; the warmup stands in examples in what is
            returned, as that of other trials does.
        foreign: whether the trial was imported.
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
    """The part of a configuration that says of the warmup of the learning rate; empty where nothing does."""
    schedule = config.get("schedule")
    return dict(schedule) if isinstance(schedule, dict) else dict(config.get(STATED, {}))


def warmup_steps(config: dict[str, Any]) -> float:
    """Of the learning rate; 0 where it is unknown, of which nothing follows. Of a trial from a checkpoint what its
    parent left, or its own."""
    parent = config.get("parent") or {}
    left = warmup(config).get("warmup_examples", 0) - parent.get("examples", 0)
    return float(max(left, parent.get("warmup_examples", 0), 0) / config["batch_size"])


def completed(values: pd.Series, scope: pd.Series) -> pd.Series:
    """A setting of trials, of those that do not say it that of the others where these agree: a program may fail before
    it says anything.

    Args:
        values: as text; empty where a trial does not say it.
        scope: what trials have in common that may take it from one another.
    """
    known = values.where(values != "")
    others = known.groupby(scope)
    return known.fillna(others.transform("first").where(others.transform("nunique") == 1, ""))
