"""Functions by which a training script of your own reports to the sweep that started it."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError
from cbs.files import atomic_file
from cbs.registry.values import is_number

FOLDER = "CBS_FOLDER"  # Environment variable that holds the folder of the trial that a sweep started
REPORTS = "report.jsonl"  # File in that folder, written by :func:`report`: one JSON object per line

SETTINGS = "cbs-settings.json"
"""File in that folder, written by :func:`report_settings` or by a program in any language: one JSON object."""

_NUMBERS, _NAMES = ("warmup_steps", "clip_norm"), ("schedule", "precision", "averaging")


def report(step: int, examples: int, loss: float, **metrics: float) -> None:
    """Report progress to the sweep; outside a sweep, and on every rank but the first, do nothing.

    ::

        from cbs import report

        for step in range(1, steps + 1):
            ...
            if step % 10 == 0:
                report(step, step * batch_size, validate(model))

    >>> report(10, 320, 2.41, accuracy=0.4)  # outside a sweep a script runs as ever

    Args:
        step: optimizer updates so far, 0 before the first.
        examples: examples seen so far, over all ranks. The sweep refuses a run whose examples are not ``step`` times
            the requested batch size; so it notices a script that ignores the batch size.
        loss: the metric; not finite where training diverged. ``--metric`` may give it any name, but must call it
            ``loss`` if further numbers are reported.
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
    """Report settings of this run that the sweep cannot know; those that are left out stay unknown and are not used.

        >>> report_settings(warmup_steps=100, schedule="cosine", clip_norm=1.0)
        >>> report_settings(warmup_steps=-1)
        Traceback (most recent call last):
            ...
        cbs.errors.ConfigError: warmup_steps must be a whole number of at least 0, got -1

    Like :func:`report` this does nothing outside a sweep. The last call counts.

    Args:
        warmup_steps: number of optimizer updates during which the learning rate rises; 0 for none.
        schedule: schedule of the learning rate, by any name.
        precision: precision of the arithmetic, by any name.
        clip_norm: norm to which longer gradients are scaled down; 0 for no clipping.
        averaging: averaging of the weights that are validated, by any name, such as ``"none"``.

    Raises:
        ConfigError: if a value is invalid.
    """
    reported = checked({name: value for name, value in locals().items() if value is not None})
    folder = _folder()
    if folder is not None:
        with atomic_file(folder / SETTINGS) as draft:
            draft.write_text(json.dumps(reported) + "\n")


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings that :func:`report_settings` accepts, and return them.

    Raises:
        ConfigError: for an unknown name or an invalid value.
    """
    for name, value in settings.items():
        if name not in (*_NUMBERS, *_NAMES):
            raise ConfigError(f"unknown setting {name!r}; known settings are {', '.join((*_NUMBERS, *_NAMES))}")
        number = is_number(value) and 0 <= value < math.inf
        if name in _NAMES and not (isinstance(value, str) and value):
            raise ConfigError(f"{name} must be a name, got {value!r}")
        if name in _NUMBERS and not (number and (name != "warmup_steps" or value == value // 1)):
            whole = "a whole" if name == "warmup_steps" else "a finite"
            raise ConfigError(f"{name} must be {whole} number of at least 0, got {value!r}")
    return dict(settings)


def _folder() -> Path | None:
    """Return the folder of the trial; ``None`` outside a sweep and on every rank but the first."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder and os.environ.get("RANK", "0") == "0" else None
