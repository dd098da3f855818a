r"""The noise scale against learning rate and batch size, for runs of equal length.

McCandlish et al. (2018, arXiv 1812.06162, appendix C) argue that training at a learning rate :math:`\epsilon` and a
batch size B has the temperature :math:`T = \epsilon / \epsilon_{max}(B)`, about :math:`\epsilon / B` for SGD at small
batches, and that the noise scale is :math:`B_{simple} \sim 1/T`. In logarithms

.. math:: \ln B_{simple} = c + k_\epsilon \ln \epsilon + k_B \ln B, \qquad k_\epsilon = -1, k_B = 1.

A point is a learning rate and a batch size: mean noise over mean signal in the second half of its steps, pooled over
all seeds. The plane of a sweep, workload and optimizer is fitted by least squares; the intervals are Student's t from
its residuals, so they include the noise of the points and all other deviations from the plane.
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.noise import EUCLIDEAN, NoiseScale, pooled_ratio
from analysis.formatting import plain
from analysis.present.findings import Findings
from analysis.quantities import UNKNOWN, Array, Quantity
from analysis.read.groups import Group
from analysis.read.results import load
from cbs.errors import ResultsError
from cbs.trial.record import TrialStatus
from cbs.trial.trial_files import read_steps

# Factor by which the squared gradient may change within the second half of a run for it to count as settled;
# chosen by hand.
DRIFT = 1.2


@dataclass(frozen=True, kw_only=True)
class TemperaturePoint(Quantity):
    """The noise scale in examples at one learning rate and batch size; ``settled`` is false if the squared gradient
    still changes by :data:`DRIFT`."""

    sweep: str
    workload: str
    optimizer: str
    lr: float
    batch_size: int
    seeds: int
    note: str = ""
    settled: bool = True

    @property
    def where(self) -> str:
        """The point in words."""
        return f"{self.workload}, {self.optimizer} at learning rate {self.lr:g}, batch size {self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class TemperatureLaw:
    """The plane of one sweep, workload and optimizer, which are never pooled: powers of learning rate and batch size,
    each ``UNKNOWN`` if it does not vary.

    Attributes:
        optimizer: name of the optimizer.
        lr, batch_size: power of the learning rate, and of the batch size.
        temperature: power of lr / B, fitted alone; -1 if B_simple ~ 1/T with T ~ lr / B.
        residual_rms: root mean square residual of ln B_simple around the plane.
        points: number of points.
        remark: what did not vary; empty otherwise.
        unsettled: number of points from runs that have not settled at their temperature.
    """

    sweep: str
    workload: str
    optimizer: str
    lr: Quantity
    batch_size: Quantity
    temperature: Quantity
    residual_rms: float
    points: int
    remark: str = ""
    unsettled: int = 0


@dataclass(frozen=True, kw_only=True)
class Temperature(Findings):
    """Result of :func:`temperature`."""

    points: tuple[TemperaturePoint, ...] = field(repr=False)
    laws: tuple[TemperatureLaw, ...]

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"points": plain(self.points)}


def temperature(*paths: str | os.PathLike[str], config: AnalysisConfig = DEFAULT) -> Temperature:
    """Fit the noise scale over learning rates and batch sizes, per sweep, workload and optimizer.

    The sweeps at ``paths``, or in these folders, have a list of learning rates and a probe, and their runs spent their
    budget; a ``ResultsError`` is raised if no trial has moments of the gradient.
    """
    results = load(*paths)
    notes = list(results.notes)
    points = [
        [
            _point(group, float(lr), int(size), part, config, notes)
            for (lr, size), part in results.of_group(index).groupby(["lr", "batch_size"], sort=True)
        ]
        for index, group in enumerate(results.groups)
    ]
    notes += [f"{point.where}: {point.note}" for own in points for point in own if point.value is None]
    known = [kept for own in points if (kept := [point for point in own if point.value is not None])]
    if not known:
        raise ResultsError(f"no trial has a noise scale: {notes[-1] if notes else 'no moments were recorded'}")
    laws = [law(own, config.confidence) for own in known]
    return Temperature(
        config=config, points=tuple(itertools.chain.from_iterable(known)), laws=tuple(laws), notes=tuple(notes)
    )


def _point(
    group: Group, lr: float, size: int, part: pd.DataFrame, config: AnalysisConfig, notes: list[str]
) -> TemperaturePoint:
    windows = list(_windows(part))
    shrunk = _shrinkage(windows)
    scale = NoiseScale(note="no run spent its budget with moments of the gradient")
    if windows:
        scale = pooled_ratio(windows, confidence=config.confidence)
    point = TemperaturePoint(
        value=scale.value, interval=scale.interval, **group.whose, lr=lr, batch_size=size, seeds=len(windows),
        note=scale.note, settled=1 / DRIFT < shrunk < DRIFT,
    )  # fmt: skip
    if not point.settled:
        notes.append(
            f"{point.where}: the squared gradient changes by a factor of {shrunk:.2g} within the second half, so the "
            "run has not settled at its temperature: run it longer"
        )
    return point


def _shrinkage(windows: Sequence[Array]) -> float:
    """Return the ratio of the mean signals in the first and second halves of all windows; 1 if noise hides it."""
    halves = [np.array_split(window[0], 2) for window in windows]
    first, second = (np.concatenate([pair[half] for pair in halves]) if halves else np.ones(1) for half in (0, 1))
    error = math.hypot(*(part.std() / math.sqrt(len(part)) for part in (first, second)))
    # by less than three standard errors noise alone may move it
    if abs(first.mean() - second.mean()) < 3.0 * error or second.mean() <= 0 or first.mean() <= 0:
        return 1.0
    return float(first.mean() / second.mean())


def _windows(part: pd.DataFrame) -> Iterator[Array]:
    """Yield signal and noise of the second half of every run that ended with its budget, shape ``[2, steps]``."""
    for folder in part.loc[part["status"] != str(TrialStatus.DIVERGED), "folder"]:
        columns, geometries = read_steps(Path(folder) / "steps.parquet")
        plain_columns = next((entry for entry in geometries if entry.geometry == EUCLIDEAN), None)
        if plain_columns is None:
            continue
        rows = np.stack([np.asarray(columns[name], float) for name in (plain_columns.signal, plain_columns.noise)])
        step = np.asarray(columns["step"], float)
        window = rows[:, (step > step[-1] / 2) & np.isfinite(rows).all(axis=0)]
        if window.shape[1]:
            yield window


def law(points: list[TemperaturePoint], confidence: float) -> TemperatureLaw:
    """Fit the plane to points of one sweep, workload and optimizer, all with a value."""
    first, y = points[0], np.log([point.value for point in points if point.value is not None])
    columns = {"lr": np.log([point.lr for point in points]), "batch_size": np.log([p.batch_size for p in points])}
    vary = {name: values for name, values in columns.items() if np.ptp(values) > 1e-9}
    slopes, residual_rms = _least_squares([*vary.values()], y, confidence)
    powers = dict.fromkeys(columns, UNKNOWN) | dict(zip(vary, slopes, strict=True))
    ratio = columns["lr"] - columns["batch_size"]
    missing = " and ".join(name.replace("_", " ") for name in columns if name not in vary)
    return TemperatureLaw(
        sweep=first.sweep,
        workload=first.workload,
        optimizer=first.optimizer,
        **powers,
        temperature=_least_squares([ratio], y, confidence)[0][0] if np.ptp(ratio) > 1e-9 else UNKNOWN,
        residual_rms=residual_rms,
        points=len(points),
        remark=f"{missing} did not vary" if missing else "",
        unsettled=sum(not point.settled for point in points),
    )


def _least_squares(columns: Sequence[Array], y: Array, confidence: float) -> tuple[list[Quantity], float]:
    """Return the slopes of y on the columns and a constant, with Student's t, and the root mean square residual;
    slopes have no intervals if no residual is left."""
    design = np.column_stack([*columns, np.ones(len(y))])
    slopes, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ slopes
    rms, freedom = math.sqrt(float(np.mean(residual**2))), len(y) - design.shape[1]
    if rank < design.shape[1]:
        return [UNKNOWN] * len(columns), rms
    if freedom < 1:
        return [Quantity(float(slope)) for slope in slopes[:-1]], rms
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * (residual @ residual) / freedom)
    half = errors * float(stdtrit(freedom, 0.5 + confidence / 2))
    ends = zip((slopes - half).tolist(), (slopes + half).tolist(), strict=True)
    return [Quantity(float(slope), pair) for slope, pair in zip(slopes[:-1], ends, strict=False)], rms
