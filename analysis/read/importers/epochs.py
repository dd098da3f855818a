"""Axes that count epochs, of which one has fewer updates the larger the batch is: convert them, and find them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.formatting import number
from analysis.quantities import Array
from analysis.read.importers.base import ImportedRun
from analysis.read.importers.settings import Settings
from cbs.errors import DataError

_FEWEST = 3  # Points from which 1, 2, 3 ... is how a curve was counted, not where it was measured, if nothing else says
_OF_RAY = "training_iteration"  # Which counts what was reported
TIMES = 10  # How many times as far something else counts from which a metric at 1, 2, 3 ... is one of epochs.


def updates(run: ImportedRun, batch_size: int, examples: int) -> Array:
    """Return the axis of a run, in epochs of so many ``examples``, as updates: the last batch of an epoch is smaller,
    and an update, too. Where epochs are counted from 0, the first is over at 0."""
    axis = np.asarray(run.axis, dtype=float)
    broken = axis[axis % 1 != 0]
    if len(broken):
        raise DataError(
            f"run {run.name} ({run.place}): {broken[0]:g} is not a whole number of epochs, within which updates are "
            "not known: remove the row, or name a column of steps, examples or tokens"
        )
    return (axis + (axis == 0).any()) * math.ceil(examples / batch_size)


def on_epochs(runs: Sequence[ImportedRun], facts: Sequence[Mapping[str, Any]], settings: Settings) -> Iterator[str]:
    """Yield notes on how epochs were read, or that steps look like epochs.

    Raises:
        DataError: if they do, and something else in the source was counted much farther; naming the column of the steps
            ends that.
    """
    sizes = sorted({each["batch_size"] for each in facts})
    axes = [np.unique(run.axis) for run in runs if len(run.values) and run.unit == "step"]
    counted = bool(axes) and all(axis[0] in (0, 1) and axis[-1] > 0 and (np.diff(axis) == 1).all() for axis in axes)
    examples = settings.examples_per_epoch
    if examples is not None:
        made = ", ".join(f"{math.ceil(examples / size)} at batch size {size}" for size in sizes)
        smaller = any(examples % size for size in sizes)
        dropped = "; one less where the last, smaller batch was dropped" * smaller
        yield f"an epoch of {examples:,} examples is read as so many updates: {made}{dropped}"
        if any(axis[0] == 0 for axis in axes):
            yield (
                "epochs are counted from 0, and 1 was added to each, as what is measured follows the training: leave "
                "out the rows at 0 if they were measured before it"
            )
    elif counted:
        run, most = max(runs, key=lambda run: run.counted), max(float(axis[-1]) for axis in axes)
        where = f"at step {'1, 2, 3 to ' * (most > 2)}{most:g}"
        if run.counted >= TIMES * most and "step" not in settings.columns:
            raise DataError(
                f"{settings.metric} was measured {where}, and run {run.name} counts to {number(run.counted, 6)} beside "
                "it: these are epochs, which have fewer updates the larger the batch is; say how long one is "
                "with --examples-per-epoch N, or which column counts updates with --column step=THEIRS"
            )
        if len(sizes) > 1 and len({axis[-1] for axis in axes}) == 1 and min(map(len, axes)) >= _FEWEST:
            yield (
                f"every run was measured {where}, whatever its batch size: if these are epochs, say how long one is "
                "with --examples-per-epoch N"
            )
        elif run.counted >= TIMES * most or settings.columns.get("step") == _OF_RAY:
            yield (
                f"{settings.columns['step']} counts reports or epochs, of any number of updates, rather than updates: "
                "if so, name a column that counts updates"
            )
