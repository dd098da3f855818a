"""Phases from a table of critical batch sizes along a run, or from the noise scale, used as a proxy of it.

The two are equal if the curvature is the same in all directions (McCandlish et al. 2018, arXiv 1812.06162, equation
2.9). Otherwise they differ by a factor that has to be measured once: up to 10 in the paper's table, and more according
to Merrill et al. (arXiv 2505.23971).
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.noise import EUCLIDEAN, pooled_ratio
from analysis.formatting import number
from analysis.quantities import OPEN, Array, Interval
from analysis.read.cells import LARGEST, empty, positive, whole
from analysis.read.table import read_table
from cbs import files
from cbs.errors import DataError, ResultsError, reason
from cbs.trial.trial_files import read_steps
from extensions.schedules.plan.phases import PhaseSource, Stretch, of_noise_scales

# Largest number of phases into which a run is divided; fewer if one of them would have no interval
MOST = 5

# Steps and examples in a stretch of a run, and its noise scale with the interval
_Part = tuple[int, int, float | None, Interval]

TRACES = ("noise_scale.json", "steps.parquet")  # Names of the files with noise scales along a run

_COLUMNS = ("examples", "critical_batch_size", "low", "high", "batch_size")


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is, by its name, a file with noise scales along a run, or a folder with one."""
    path = Path(path)
    return path.suffix == ".json" or path.name in TRACES or any((path / name).is_file() for name in TRACES)


def of_trace(
    path: str | os.PathLike[str],
    config: AnalysisConfig,
    ratio: float = 1.0,
    optimizer: str | None = None,
    tokens_per_example: int | None = None,
) -> PhaseSource:
    """Return the phases of the run behind a ``noise_scale.json`` or a ``steps.parquet``, or in a folder with one.

    ``ratio`` is that of critical batch size to noise scale; ``optimizer`` and ``tokens_per_example`` are used if the
    file does not contain them. The intervals of a ``noise_scale.json`` have a confidence of their own.

    Raises:
        DataError: if the path is neither of the two, or damaged.
        ResultsError: if the noise scale of a phase has no interval with two positive finite ends.
    """
    path = Path(path)
    if path.is_dir():
        path = next((path / name for name in TRACES if (path / name).exists()), path)
    about: dict[str, Any] = {"optimizer": optimizer or "", "tokens_per_example": tokens_per_example}
    if path.suffix == ".json":
        stretches, confidence, metadata = _of_json(path)
        about |= metadata
    elif path.suffix == ".parquet":
        stretches, confidence = _of_steps(path, config.confidence), config.confidence
    else:
        raise DataError(f"{path} is neither a noise_scale.json (of cbs noise-scale) nor a steps.parquet (of a trial)")
    known, seen = [], 0
    for steps, examples, value, (low, high) in stretches:
        seen += examples
        if missing := _missing(value, (low, high)):
            raise ResultsError(
                f"{path}: the noise scale up to {seen:,} examples has no {missing} above 0: measure more steps, or "
                "larger batches"
            )
        assert value is not None
        assert low is not None
        assert high is not None
        where = f"{number(seen)} examples of the trace"
        known.append((where, ratio * value, (ratio * low, ratio * high), steps, examples))
    return of_noise_scales(
        known,
        config,
        confidence,
        what=f"the noise scale along {path}",
        notes=(
            f"the noise scale stands in for the critical batch size, times {ratio:g} (--ratio): that ratio was not "
            "measured here",
            "one run: the intervals include the noise of its gradients, but not the differences between seeds",
        ),
        **about,
    )


def _missing(value: float | None, ends: Interval) -> str:
    """Name the number that is missing, not positive (possible for estimates with little signal), or too large; empty if
    there is none."""
    named = zip(("value", "lower end", "upper end"), (value, *ends), strict=True)
    return next((name for name, found in named if found is None or not 0 < found < LARGEST), "")


def _of_json(path: Path) -> tuple[list[_Part], float, dict[str, Any]]:
    try:
        run = json.loads(files.whole(path).read_text())
        about = {"example_unit": run["example_unit"], "tokens_per_example": run["tokens_per_example"]}
        about["optimizer"] = str(run["config"]["optimizer"]["name"])
        stretches_read: list[_Part] = []
        for phase in run["phases"]:
            scale = phase["noise_scales"][EUCLIDEAN]
            steps = int(phase["last_step"]) - int(phase["first_step"]) + 1
            ends = tuple(None if scale[end] is None else float(scale[end]) for end in ("low", "high"))
            value = None if scale["value"] is None else float(scale["value"])
            stretches_read.append((steps, int(phase["last_examples"]) - int(phase["first_examples"]), value, ends))  # type: ignore[arg-type]
        return stretches_read, float(run["phases"][0]["noise_scales"][EUCLIDEAN]["confidence"]), about
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise DataError(f"{path} is not what cbs noise-scale writes ({reason(error)})") from None


def _of_steps(path: Path, confidence: float) -> list[_Part]:
    """Divide the run into as many phases, each as long as all before it, as have intervals."""
    columns, geometries = read_steps(path)
    euclidean = next((entry for entry in geometries if entry.geometry == EUCLIDEAN), None)
    if euclidean is None:
        raise ResultsError(f"{path} has no noise scale of the whole model; run the trial with --set probe=auto")
    examples, moments = columns["examples"], np.stack([columns[euclidean.signal], columns[euclidean.noise]])
    cut: list[_Part] = []
    for count in reversed(range(1, MOST + 1)):
        cut = _cut(examples, moments, count, confidence)
        if not any(_missing(value, ends) for *_, value, ends in cut):
            return cut
    return cut


def _cut(examples: Array, moments: Array, count: int, confidence: float) -> list[_Part]:
    last = [len(examples) // 2**back for back in reversed(range(count))]
    cut: list[_Part] = []
    for first, end in zip([0, *last[:-1]], last, strict=True):
        window = moments[:, first:end]
        window = window[:, np.isfinite(window).all(axis=0)]
        if end <= first or not window.shape[1]:
            return [(0, int(examples[-1]), None, (None, None))]
        scale = pooled_ratio([window], confidence=confidence)
        seen = int(examples[end - 1]) - (int(examples[first - 1]) if first else 0)
        cut.append((end - first, seen, scale.value, scale.interval))
    return cut


def of_curve(
    path: str | os.PathLike[str],
    config: AnalysisConfig,
    *,
    end: int | None,
    tokens_per_example: int | None,
    optimizer: str | None,
) -> PhaseSource:
    """Return the phases between the rows of a table.

    A row holds until the next one, the last one until ``end`` examples. Columns: ``examples`` seen, from 0 or later and
    increasing; the local ``critical_batch_size`` there, in examples; its interval ``low`` and ``high`` at the
    confidence of ``config``, without which there is no band; ``batch_size`` of the run along which it was measured. A
    ``DataError`` names the line and the remedy.
    """
    table = read_table(path)
    table.known(_COLUMNS)
    for name in ("examples", "critical_batch_size", "batch_size"):
        table.need(name, "a plan needs it")
    rows = range(len(table.places))
    begins = [table.cell(row, "examples", lambda cell: whole(cell, 0)) for row in rows]
    for row in rows[1:]:
        if begins[row] <= begins[row - 1]:
            raise table.error(row, "examples", "it does not come after the row before it")
    if end is None or end <= begins[-1]:
        raise DataError(
            f"{table.name} ends at {begins[-1]:,} examples: give a --budget beyond it, where its last row ends"
        )
    stretches: list[Stretch] = []
    for row, last in zip(rows, [*begins[1:], end], strict=True):
        value, batch = table.cell(row, "critical_batch_size", positive), table.cell(row, "batch_size", positive)
        ends: Interval = tuple(  # type: ignore[assignment]
            None if name not in table.columns or empty(table.columns[name][row]) else table.cell(row, name, positive)
            for name in ("low", "high")
        )
        if None not in ends and not ends[0] <= value <= ends[1]:  # type: ignore[operator]
            raise table.error(row, "critical_batch_size", "it lies outside its own interval")
        seen = last - (begins[row] if row else 0)
        stretches.append((f"{number(last)} examples of the table", value, ends, seen / batch, seen))
    notes: tuple[str, ...] = ()
    if any(None in ends for _, _, ends, *_ in stretches):
        notes = ("not every row has an interval: the values decide alone, and the plan has no intervals",)
        stretches = [(where, value, OPEN, steps, seen) for where, value, _, steps, seen in stretches]
    return of_noise_scales(
        stretches,
        config,
        config.confidence,
        what=f"critical batch sizes of {table.name}",
        optimizer=optimizer or "",
        tokens_per_example=tokens_per_example,
        notes=notes,
    )
