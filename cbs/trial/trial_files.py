"""The files of one trial: its record, its per-step columns and its timing, written as tables and read back.

Every reader checks the checksum of its file (:mod:`cbs.files`) and names the file in its errors.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cbs.checksum import parquet_bytes, read_json, read_parquet
from cbs.errors import DamagedError, ResultsError
from cbs.trial.config import COMMAND
from cbs.trial.record import SCHEMA_VERSION, GeometryColumns, Measurement, TrialResult, TrialStatus

METADATA_KEY = b"cbs"
METRIC = "metric."  # Prefix of the columns of metrics other than the target's

_RECORD_COLUMNS = {
    "step": pa.int64(),
    "examples": pa.int64(),
    "value": pa.float64(),
    "train_loss": pa.float64(),
    "lr": pa.float64(),
}


def read_record(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Read the evaluation table and the summary of one ``record.parquet``.

    Raises:
        ResultsError: names the file and what to do.
    """
    try:
        table = read_parquet(path).read(use_threads=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedError(path, error) from None
    summary = _parse_summary(table.schema.metadata, path)
    if {name for name in table.column_names if not name.startswith(METRIC)} != set(_RECORD_COLUMNS):
        raise ResultsError(
            f"{path} does not have the columns {', '.join(_RECORD_COLUMNS)}; delete its folder and run the sweep again"
        )
    return table, summary


def read_steps(path: Path) -> tuple[dict[str, np.ndarray], tuple[GeometryColumns, ...]]:
    """Read the per-step columns of one ``steps.parquet``, each of shape ``[steps]``, and the geometries among them.

    Raises:
        ResultsError: names the file and what to do.
    """
    try:
        table = read_parquet(path).read(use_threads=False)
        metadata = [(field.metadata or {}).get(METADATA_KEY) for field in table.schema]
        geometries = tuple(dict.fromkeys(GeometryColumns(**json.loads(text)) for text in metadata if text))
        for geometry in geometries:
            table.select([geometry.signal, geometry.noise])
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(path, error) from None
    return {name: table[name].to_numpy() for name in table.column_names}, geometries


def read_timing(path: Path) -> dict[str, Any]:
    """Read the wall-clock facts of one ``timing.json``.

    Raises:
        DamagedError: if it cannot be read.
    """
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(path, error) from None


def check_steps(path: Path, result: TrialResult) -> None:
    """Check that the per-step columns of a trial are complete, by the checksum and the footer of their file."""
    try:
        rows = read_parquet(path).metadata.num_rows
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedError(path, error) from None
    # There are no columns for steps that another program takes.
    if rows < result.final_step and result.config.workload.name != COMMAND:
        raise DamagedError(path, ValueError(f"it has {rows} rows, but the trial {result.final_step} steps"))


def record_table(result: TrialResult) -> pa.Table:
    """Return the evaluations of a trial, with configuration and summary in the metadata."""
    summary = {
        "schema_version": SCHEMA_VERSION,
        "trial_id": result.trial_id,
        "config": result.config.to_dict(),
        "status": str(result.status),
        "steps_to_target": result.steps_to_target,
        "workload": None if result.workload is None else dataclasses.asdict(result.workload),
        "message": result.message,
    }
    if result.micro_batch_size is not None:
        summary["micro_batch_size"] = result.micro_batch_size
    if result.stated:
        summary["stated"] = result.stated
    if result.directions:
        summary["directions"] = result.directions
    if result.decided:
        summary["decided"] = result.decided
    columns = {name: [getattr(row, name) for row in result.evaluations] for name in _RECORD_COLUMNS}
    arrays = {name: pa.array(columns[name], kind) for name, kind in _RECORD_COLUMNS.items()}
    for name in sorted({name for row in result.evaluations for name in row.others}):
        values = [row.others.get(name, math.nan) for row in result.evaluations]
        arrays[f"{METRIC}{name}"] = pa.array(values, pa.float64())
    return pa.table(arrays).replace_schema_metadata({METADATA_KEY: json.dumps(summary, sort_keys=True)})


def measurement(row: dict[str, Any]) -> Measurement:
    """Return an evaluation from a row of :func:`record_table`."""
    others = {name.removeprefix(METRIC): row.pop(name) for name in [*row] if name.startswith(METRIC)}
    return Measurement(**row, others=others)


def steps_bytes(result: TrialResult) -> bytes:
    """Return the file of the per-step columns of a trial; those of trials without any step are alike, made once."""
    if any(map(len, result.steps.values())) or result.geometries:
        return parquet_bytes(_steps_table(result.steps, result.geometries))
    return _no_steps(tuple((name, str(values.dtype)) for name, values in result.steps.items()))


@functools.cache
def _no_steps(columns: tuple[tuple[str, str], ...]) -> bytes:
    return parquet_bytes(_steps_table({name: np.empty(0, kind) for name, kind in columns}, ()))


def _steps_table(steps: Mapping[str, np.ndarray], geometries: Iterable[GeometryColumns]) -> pa.Table:
    """Return the per-step columns of a trial, with their geometries in the metadata of the fields."""
    metadata: dict[str, dict[bytes, str]] = {}
    for geometry in geometries:
        text = json.dumps(dataclasses.asdict(geometry), sort_keys=True)
        metadata |= {name: {METADATA_KEY: text} for name in (geometry.signal, geometry.noise)}
    arrays = {name: pa.array(values) for name, values in steps.items()}
    fields = [pa.field(name, array.type, metadata=metadata.get(name)) for name, array in arrays.items()]
    return pa.table(list(arrays.values()), schema=pa.schema(fields))


def _parse_summary(metadata: dict[bytes, bytes] | None, path: Path) -> dict[str, Any]:
    if not metadata or METADATA_KEY not in metadata:
        raise ResultsError(f"{path} was not written by cbs; remove it from the results folder")
    try:
        summary = json.loads(metadata[METADATA_KEY])
        if b"\\ud" in metadata[METADATA_KEY]:  # half a surrogate pair, which cannot be encoded
            json.dumps(summary, ensure_ascii=False).encode()
        check_version(summary["schema_version"], path)
        TrialStatus(summary["status"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(path, error) from None
    return summary


def check_version(version: Any, path: Path) -> None:
    """Raise a :class:`~cbs.errors.ResultsError` if a file has another schema version."""
    if version != SCHEMA_VERSION:
        raise ResultsError(
            f"{path} has schema version {version}, this cbs reads version {SCHEMA_VERSION}; "
            "analyze it with the cbs that wrote it, or run the sweep again"
        )
