"""What a training script of your own says to the sweep that started it."""

from __future__ import annotations

import json
import os
from pathlib import Path

FOLDER = "CBS_FOLDER"
"""Environment variable with the folder of the trial that a sweep started."""

REPORTS = "report.jsonl"
"""File in it that :func:`report` writes: one JSON object per line."""


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
        loss: the metric, called ``loss`` in ``--metric``; not finite where training diverged.
        metrics: further numbers; any of them can be the metric, too.
    """
    folder = os.environ.get(FOLDER)
    if not folder or os.environ.get("RANK", "0") != "0":
        return
    row = {"step": int(step), "examples": int(examples), "loss": float(loss)}
    row |= {name: float(value) for name, value in metrics.items()}
    with open(Path(folder) / REPORTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
