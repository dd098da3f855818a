"""A measured spectrum and its file: curvature, gradient and gradient noise by eigenvalue."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cbs.checksum import parquet_bytes, read_parquet
from cbs.errors import ResultsError, reason
from cbs.files import atomic_file

FILE = "spectrum.parquet"
METADATA_KEY = b"cbs"
SCHEMA_VERSION = 1

GAUSS_NEWTON, HESSIAN = "gauss_newton", "hessian"
START, TARGET = "start", "target"
KINDS = ("gradient", "start", "noise")
"""Kinds of spectral measures, see :class:`SpectralMeasure`."""

_COLUMNS = {"point": pa.string(), "replicate": pa.int64(), "kind": pa.string()}
_NUMBERS = {"curvature": pa.float64(), "weight": pa.float64()}


@dataclass(frozen=True)
class SpectralMeasure:
    r"""A spectral measure with a few points.

    Attributes:
        kind: ``gradient``: weights are squared projections of the true gradient on the eigenvectors; estimates may be
            negative where noise dominates. ``start``: the same for the gradient of the quadratic at the start of
            training, :math:`g + H (w_0 - w)`; equal to ``gradient`` where the start is measured. ``noise``: variance of
            one example's gradient along the eigenvectors; these weights add up to :math:`tr\,\Sigma`.
        curvature: eigenvalues, ``[K]``.
        weight: weights of the eigenvalues, ``[K]``.
    """

    kind: str
    curvature: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SpectrumSample:
    """One measurement at one point of training, with batches and random signs of its own.

    Attributes:
        point: ``start`` or ``target``.
        replicate: number of the measurement; the same number at two points means the same run.
        seed: seed of the run's weights and data.
        step: number of optimizer updates before it.
        value: validation metric at the point.
        start_value: validation metric before training.
        train_loss: mean training loss at the point.
        gradient_examples: number of examples behind the two halves of the gradient.
        curvature_examples: number of examples behind the curvature.
        measures: see :class:`SpectralMeasure`; several measures of one kind are added.
    """

    point: str
    replicate: int
    seed: int
    step: int
    value: float
    start_value: float
    train_loss: float
    gradient_examples: int
    curvature_examples: int
    measures: tuple[SpectralMeasure, ...] = field(repr=False)

    def of(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Return eigenvalues and weights of all measures of a kind."""
        chosen = [measure for measure in self.measures if measure.kind == kind]
        return tuple(np.concatenate([getattr(each, name) for each in chosen]) for name in ("curvature", "weight"))  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The spectrum that ``cbs theory spectrum`` measured for a sweep.

    Attributes:
        curvature: ``gauss_newton`` or ``hessian``.
        nodes: largest number of points in a measure.
        parameters: number of trained parameters.
        trial: id of the trial whose training led to the point ``target``; empty where only the start was measured.
        metric: name of the validation metric.
        direction: which side of the target is better, ``below`` for a loss.
        workload: name and options of the workload.
        samples: one per point and replicate.
    """

    curvature: str
    nodes: int
    parameters: int
    trial: str
    metric: str
    direction: str
    workload: dict[str, Any]
    samples: tuple[SpectrumSample, ...] = field(repr=False)

    @property
    def points(self) -> list[str]:
        """Names of the measured points."""
        return list(dict.fromkeys(sample.point for sample in self.samples))

    def at(self, point: str) -> list[SpectrumSample]:
        """Return the measurements at a point, by replicate."""
        return [sample for sample in self.samples if sample.point == point]


def write(spectrum: Spectrum, folder: Path) -> Path:
    """Store a spectrum in the folder of its sweep atomically, replacing an earlier one; return the file's path.

    Raises:
        ResultsError: if it cannot be written.
    """
    rows: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, *_NUMBERS)}
    for sample in spectrum.samples:
        for number, measure in enumerate(sample.measures):
            count = len(measure.curvature)
            rows["point"] += [sample.point] * count
            rows["replicate"] += [sample.replicate] * count
            rows["kind"] += [f"{measure.kind} {number}"] * count
            rows["curvature"] += measure.curvature.tolist()
            rows["weight"] += measure.weight.tolist()
    table = pa.table({name: pa.array(rows[name], kind) for name, kind in (_COLUMNS | _NUMBERS).items()})
    about = {"schema_version": SCHEMA_VERSION, **_without(spectrum, "samples")}
    about["samples"] = [_without(sample, "measures") for sample in spectrum.samples]
    with atomic_file(folder / FILE, "the spectrum ") as draft:
        metadata = {METADATA_KEY: json.dumps(about, allow_nan=False)}
        draft.write_bytes(parquet_bytes(table.replace_schema_metadata(metadata)))
    return folder / FILE


def read(folder: Path) -> Spectrum:
    """Read the spectrum in the folder of a sweep.

    Raises:
        ResultsError: if there is none, or it cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        raise ResultsError(f"no spectrum in {folder}: measure one with 'cbs theory spectrum {folder}'")
    try:
        table = read_parquet(path).read(use_threads=False)
        about = json.loads((table.schema.metadata or {})[METADATA_KEY])
        if about.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError("it was written by another version of cbs")
        measures = _measures(table)
        samples = tuple(
            SpectrumSample(**entry, measures=tuple(measures[entry["point"], entry["replicate"]]))
            for entry in about.pop("samples")
        )
        return Spectrum(**about, samples=samples)
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise ResultsError(
            f"cannot read {path}: {reason(error)}; measure it again with 'cbs theory spectrum {folder}'"
        ) from None


def _measures(table: pa.Table) -> dict[tuple[str, int], list[SpectralMeasure]]:
    columns = {name: table[name].to_pylist() for name in _COLUMNS}
    curvature, weight = (table[name].to_numpy() for name in _NUMBERS)
    if not (np.isfinite(curvature).all() and np.isfinite(weight).all()):
        raise ValueError("it holds numbers that are not finite")
    measures: dict[tuple[str, int], list[SpectralMeasure]] = {}
    keys = list(zip(*columns.values(), strict=True))
    for point, replicate, kind in dict.fromkeys(keys):
        rows = [index for index, key in enumerate(keys) if key == (point, replicate, kind)]
        name = kind.partition(" ")[0]
        if name not in KINDS:
            raise ValueError(f"it holds a measure of unknown kind {name!r}")
        measures.setdefault((point, replicate), []).append(SpectralMeasure(name, curvature[rows], weight[rows]))
    return measures


def _without(value: Any, *left_out: str) -> dict[str, Any]:
    names: Iterable[str] = (entry.name for entry in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if name not in left_out}


__all__: Sequence[str] = [
    "FILE",
    "GAUSS_NEWTON",
    "HESSIAN",
    "KINDS",
    "START",
    "TARGET",
    "SpectralMeasure",
    "Spectrum",
    "SpectrumSample",
    "read",
    "write",
]  # fmt: skip
