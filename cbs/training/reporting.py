"""What a training script of your own says to the sweep that started it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError
from cbs.files import atomic_file
from cbs.registry.domains import is_number

FOLDER = "CBS_FOLDER"
"""Environment variable with the folder of the trial that a sweep started."""

REPORTS = "report.jsonl"
"""File in it that :func:`report` writes: one JSON object per line."""

SETTINGS = "cbs-settings.json"
"""File in it that :func:`report_settings` writes, or a program in any language: one JSON object."""

_NUMBERS, _NAMES = ("warmup_steps", "clip_norm"), ("schedule", "precision", "averaging")


def report(step: int, examples: int, loss: float, **metrics: float) -> None:
    """Tell the sweep how training stands; outside a sweep, and on every rank but the first, it does nothing.

    ::

        from cbs import report

        for step in range(1, steps + 1):
            ...
            if step % 10 == 0:
                report(step, step * batch_size, validate(model))

    Args:
        step: optimizer updates so far, 0 before the first.
        examples: examples seen so far, over all ranks; the sweep refuses a run whose examples are not ``step`` times
            the batch size it was asked for, which is how a batch size that a script ignores is found.
        loss: the metric; not finite where training diverged. ``--metric`` may call it anything, but has to call it
            ``loss`` where there are further numbers.
        metrics: further numbers; any of them can be the metric, too.
    """
    folder = _folder()
    if folder is None:
        return
    row = {"step": int(step), "examples": int(examples), "loss": float(loss)}
    row |= {name: float(value) for name, value in metrics.items()}
    with open(folder / REPORTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def report_settings(
    *,
    warmup_steps: int | None = None,
    schedule: str | None = None,
    precision: str | None = None,
    clip_norm: float | None = None,
    averaging: str | None = None,
) -> None:
    """Tell the sweep what it cannot know of this run; what is not told stays unknown, and nothing is made of it.

    Like :func:`report` it does nothing outside a sweep. The last call counts.

    Args:
        warmup_steps: optimizer updates in which the learning rate rises; 0 for none.
        schedule: of the learning rate, by any name.
        precision: of the arithmetic, by any name.
        clip_norm: norm to which longer gradients are scaled down; 0 for never.
        averaging: of the weights that are validated, by any name, such as ``"none"``.

    Raises:
        ConfigError: for a value out of its domain.
    """
    told = checked({name: value for name, value in locals().items() if value is not None})
    folder = _folder()
    if folder is not None:
        with atomic_file(folder / SETTINGS) as draft:
            draft.write_text(json.dumps(told) + "\n")


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as :func:`report_settings` takes them.

    Raises:
        ConfigError: for another name, or a value out of its domain.
    """
    for name, value in settings.items():
        if name not in (*_NUMBERS, *_NAMES):
            raise ConfigError(f"unknown setting {name!r}; known are {', '.join((*_NUMBERS, *_NAMES))}")
        number = is_number(value) and 0 <= value < math.inf
        if name in _NAMES and not (isinstance(value, str) and value):
            raise ConfigError(f"{name} must be a name, got {value!r}")
        if name in _NUMBERS and not (number and (name != "warmup_steps" or value == value // 1)):
            whole = "a whole" if name == "warmup_steps" else "a finite"
            raise ConfigError(f"{name} must be {whole} number of at least 0, got {value!r}")
    return dict(settings)


def _folder() -> Path | None:
    """Of the trial; ``None`` outside a sweep and on every rank but the first."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder and os.environ.get("RANK", "0") == "0" else None
