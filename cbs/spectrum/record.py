"""A measured spectrum and its file: where the curvature, the gradient and the gradient noise lie along eigenvalues."""

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
"""What lies along the eigenvalues, see :class:`SpectralMeasure`."""

_COLUMNS = {"point": pa.string(), "replicate": pa.int64(), "kind": pa.string()}
_NUMBERS = {"curvature": pa.float64(), "weight": pa.float64()}


@dataclass(frozen=True)
class SpectralMeasure:
    r"""A spectral measure in a few points.

    Attributes:
        kind: ``gradient``: squared projections of the true gradient on the eigenvectors, of any sign where noise hides
            them. ``start``: likewise of the gradient that the quadratic has where training starts,
            :math:`g + H (w_0 - w)`; the same as ``gradient`` where it is measured at the start. ``noise``: variance
            of one example's gradient along the eigenvectors, the weights add up to :math:`tr\,\Sigma`.
        curvature: eigenvalues, ``[K]``.
        weight: ``[K]``.
    """

    kind: str
    curvature: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SpectrumSample:
    """One measurement at one point, with batches and random signs of its own.

    Attributes:
        point: ``start`` or ``target``.
        replicate: number of the measurement; the same number at two points is of one run.
        seed: of the run's weights and data.
        step: optimizer updates before it.
        value: validation metric there.
        start_value: validation metric before training.
        train_loss: mean training loss there.
        gradient_examples: that the two halves of the gradient are of.
        curvature_examples: that the curvature is of.
        measures: see :class:`SpectralMeasure`; several of a kind add up.
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
        """Eigenvalues and weights of all measures of a kind."""
        chosen = [measure for measure in self.measures if measure.kind == kind]
        return tuple(np.concatenate([getattr(each, name) for each in chosen]) for name in ("curvature", "weight"))  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The spectrum that ``cbs theory spectrum`` measured for a sweep.

    Attributes:
        curvature: ``gauss_newton`` or ``hessian``.
        nodes: most points of a measure.
        parameters: trained ones.
        trial: the trial whose training led to the point ``target``, its id; empty where only the start was measured.
        metric: name of the validation metric.
        direction: of the metric, ``below`` for a loss.
        workload: name and options.
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
        """The points that were measured."""
        return list(dict.fromkeys(sample.point for sample in self.samples))

    def at(self, point: str) -> list[SpectrumSample]:
        """The measurements at a point, by replicate."""
        return [sample for sample in self.samples if sample.point == point]


def write(spectrum: Spectrum, folder: Path) -> Path:
    """Store a spectrum in the folder of its sweep in one piece, in place of an earlier one; returns the file.

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
    """The spectrum in the folder of a sweep.

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
