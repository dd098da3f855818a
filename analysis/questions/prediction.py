"""A sweep predicted from its model's measured spectrum by the noisy quadratic, beside what was measured.

The spectrum is that of ``cbs spectrum``. The noisy quadratic of Zhang et al. (2019, arXiv:1907.04164) that has its
curvature, its gradient and its noise is trained in closed form to the sweep's target at the sweep's batch sizes, and
the counts are fitted as those of the sweep are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.arrays import OPEN, UNKNOWN, Interval, Quantity
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.phrases import number, with_interval
from analysis.plain import plain
from analysis.questions.analyze import Findings
from analysis.questions.fit_table import fit_table
from analysis.questions.mapping import Mapped, mapped, unlike
from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.noise_scale.correction import product_ends
from cbs.spectrum.record import START, TARGET, Sample, Spectrum, read
from cbs.store import find_sweeps, read_record
from cbs.theory.noisy_quadratic import NoisyQuadratic, tuned
from cbs.theory.noisy_quadratic.measured import Measured, measured_quadratic

GROUPED = 1.03
"""Curvatures nearer than this are taken together: steps change by a thousandth."""

FACTOR = 4.0
"""A ratio whose interval is wider than this says neither yes nor no."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """The prediction under one assumption.

    Attributes:
        point: where the spectrum is of: ``start`` or ``target``.
        floor: metric at the minimum of the quadratic; ``None`` where there is no quadratic.
        own: whether the floor is that of the quadratic itself, not one that was assumed.
        steps: to the target at every batch size; ``None`` where it is not reached.
        critical_batch_size: of the fit to ``steps``, in examples.
        min_steps: likewise ``S_min``.
        why_not: why there is no prediction; empty where there is one.
    """

    point: str
    floor: float | None
    own: bool
    steps: tuple[Quantity, ...]
    critical_batch_size: Quantity = UNKNOWN
    min_steps: Quantity = UNKNOWN
    why_not: str = ""

    @property
    def words(self) -> str:
        """The assumption."""
        if self.floor is None:
            return f"spectrum at the {self.point}"
        return f"spectrum at the {self.point}, {'its own ' if self.own else ''}floor {number(self.floor)}"

    @property
    def label(self) -> str:
        """The same in few letters."""
        return f"{self.point}, {'own floor' if self.own else f'floor {number(self.floor)}'}"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One optimizer at one target.

    Attributes:
        answer: what was measured.
        mapped: how the quadratic is trained.
        batch_sizes: of the sweep, or as asked.
        main: the prediction, with intervals over the replicates of the spectrum.
        others: under other assumptions, without intervals.
        critical_ratio: predicted over measured critical batch size.
        min_steps_ratio: likewise of ``S_min``.
    """

    answer: Answer = field(repr=False)
    mapped: Mapped
    batch_sizes: tuple[float, ...]
    main: Variation
    others: tuple[Variation, ...]

    @property
    def critical_ratio(self) -> Quantity:
        return _over(self.main.critical_batch_size, self.answer.critical)

    @property
    def min_steps_ratio(self) -> Quantity:
        return _over(self.main.min_steps, self.answer.min_steps)

    @property
    def says(self) -> str:
        """Whether the prediction holds, in a sentence."""
        if self.main.why_not:
            return f"no prediction: {self.main.why_not}"
        parts = [
            _verdict("B_crit", self.main.critical_batch_size, self.answer.critical, self.critical_ratio),
            _verdict("S_min", self.main.min_steps, self.answer.min_steps, self.min_steps_ratio),
        ]
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        group, critical = self.answer.group, self.answer.critical
        return {
            **{name: getattr(group, name) for name in ("sweep", "workload", "optimizer", "example_unit")},
            "target": self.answer.target.to_json(),
            "method": plain(self.mapped),
            "batch_sizes": list(self.batch_sizes),
            "measured": {
                **Quantity(critical.value, critical.interval).named("critical_batch_size"),
                **self.answer.min_steps.named("min_steps"),
            },
            "predicted": plain(self.main),
            **self.critical_ratio.named("critical_batch_size_ratio"),
            **self.min_steps_ratio.named("min_steps_ratio"),
            "other_assumptions": plain(self.others),
            "says": self.says,
        }


@dataclass(frozen=True, kw_only=True)
class Predictions(Findings):
    """What :func:`predict` found.

    Attributes:
        spectrum: what was measured of the model.
        entries: one per optimizer and target.
    """

    spectrum: Spectrum = field(repr=False)
    entries: tuple[Prediction, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        about = {name: getattr(self.spectrum, name) for name in ("curvature", "nodes", "parameters", "trial")}
        return super().to_json() | {"spectrum": about, "predictions": plain(self.entries)}


def predict(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    optimizers: Sequence[str] | None = None,
    targets: Sequence[float] | None = None,
    batch_sizes: Sequence[int] | None = None,
    at: str | None = None,
    floors: Sequence[float] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Predictions:
    """Predict the steps of a sweep and its critical batch size from the spectrum in its folder.

    Args:
        path: folder of one sweep.
        config: how the fits are made.
        optimizers: names of the sweep's optimizers; all that the quadratic knows by default.
        targets: values of the sweep's metric; its own by default.
        batch_sizes: those of the sweep by default.
        at: the point whose spectrum the prediction is of; by default where training reached the target, if that was
            measured. The other point is among the other assumptions.
        floors: assumed floors beside the quadratic's own. By default 0 and half the target.
        progress: called with what is being computed.

    Raises:
        ConfigError: if there is no such optimizer or point, the metric is no loss, or a value is out of its domain.
        ResultsError: if there are no usable results or no spectrum at ``path``.
    """
    stores = find_sweeps(path)
    if len(stores) > 1:
        raise ConfigError(f"{path} holds {len(stores)} sweeps; give the folder of one: {stores[0].root}")
    spectrum, results = read(stores[0].root), load(path)
    if spectrum.direction != "below":
        raise ConfigError(f"the noisy quadratic predicts a loss, and {spectrum.metric} is better above its target")
    point = at or (TARGET if TARGET in spectrum.points else START)
    if point not in spectrum.points:
        again = f"measure it with 'cbs spectrum {path} --at {point}'"
        raise ConfigError(f"no spectrum was measured at {point!r}, only at {', '.join(spectrum.points)}; {again}")
    notes = [*results.notes]
    entries = []
    known = [group.choice.name for group in results.groups]
    if unknown := [name for name in optimizers or () if name not in known]:
        raise ConfigError(f"{path} has no optimizer {unknown[0]!r}; it has {', '.join(dict.fromkeys(known))}")
    for answer in answers(results, config, targets=targets, noise=False):
        choice, label = answer.group.choice, answer.group.optimizer
        if optimizers and choice.name not in optimizers:
            continue
        trial = results.of_group(results.groups.index(answer.group)).iloc[0]
        _, record = read_record(Path(trial["folder"]) / "record.parquet")
        method = mapped(choice, record["config"])
        if isinstance(method, str):
            notes.append(f"{label} is left out: {method}")
            continue
        notes += [f"{label}: {what}" for what in unlike(choice, record["config"])]
        progress(label)
        sizes = tuple(map(float, batch_sizes or [entry.batch_size for entry in answer.points]))
        assumed = [0.0, answer.target.value / 2] if floors is None else floors
        task = _Task(method=method, target=answer.target.value, batch_sizes=sizes, config=config)
        entries.append(
            Prediction(
                answer=answer,
                mapped=method,
                batch_sizes=sizes,
                main=task.with_interval(spectrum.at(point)),
                others=(
                    *(task.under(spectrum.at(other)) for other in spectrum.points if other != point),
                    *(task.under(spectrum.at(point), floor) for floor in assumed),
                ),
            )
        )
    if not entries:
        raise ResultsError("; ".join(notes) or f"{path} has no optimizer that the noisy quadratic knows")
    return Predictions(config=config, spectrum=spectrum, entries=tuple(entries), notes=tuple(dict.fromkeys(notes)))


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What is predicted, of any spectrum."""

    method: Mapped
    target: float
    batch_sizes: tuple[float, ...]
    config: AnalysisConfig

    def under(self, samples: Sequence[Sample], floor: float | None = None) -> Variation:
        """The prediction of measurements that count alike, without intervals."""
        point, own = samples[0].point, floor is None
        try:
            found = measured_quadratic(samples, floor)
        except ValueError as error:
            return Variation(point=point, floor=floor, own=own, steps=(), why_not=str(error))
        if why_not := self._beyond(found):
            return Variation(point=point, floor=found.floor, own=own, steps=(), why_not=why_not)
        steps = self._steps(found.model.grouped(GROUPED), self.target - found.floor)
        critical, least = self._fitted(steps)
        return Variation(
            point=point,
            floor=found.floor,
            own=own,
            steps=tuple(map(Quantity, steps)),
            critical_batch_size=Quantity(critical),
            min_steps=Quantity(least),
            why_not="" if any(steps) else f"no batch size reaches {self.target:g}: noise keeps the loss above it",
        )

    def with_interval(self, samples: Sequence[Sample]) -> Variation:
        """Likewise with intervals, by the jackknife over the measurements."""
        whole = self.under(samples)
        if whole.why_not or len(samples) < 2:
            return whole
        rest = [self.under([*samples[:index], *samples[index + 1 :]]) for index in range(len(samples))]

        def known(of: Callable[[Variation], Quantity]) -> Quantity:
            values = [of(each).value if each.steps else None for each in rest]
            return Quantity(of(whole).value, jackknifed(of(whole).value, values, self.config.confidence))

        places = range(len(self.batch_sizes))
        return replace(
            whole,
            steps=tuple(known(lambda each, place=place: each.steps[place]) for place in places),  # type: ignore[misc]
            critical_batch_size=known(lambda each: each.critical_batch_size),
            min_steps=known(lambda each: each.min_steps),
        )

    def _beyond(self, found: Measured) -> str:
        if found.floor >= self.target:
            return (
                f"the quadratic has its floor at {number(found.floor)}, above the target {self.target:g}, "
                "and never gets there"
            )
        if found.model.initial_loss <= self.target - found.floor:
            before = found.model.initial_loss + found.floor
            return f"the quadratic is at {number(before)} before training, below the target"
        return ""

    def _steps(self, model: NoisyQuadratic, excess: float) -> list[float | None]:
        method = self.method
        found = [
            tuned(model, method.method, excess, size, method.momentum, power=method.power) for size in self.batch_sizes
        ]
        return [None if best is None else best.steps for best in found]

    def _fitted(self, steps: Sequence[float | None]) -> tuple[float | None, float | None]:
        """Critical batch size and ``S_min`` of the curve through the counts."""
        rows = [(size, count) for size, count in zip(self.batch_sizes, steps, strict=True) if count]
        if len(rows) < 2:
            return None, None
        table = pd.DataFrame(rows, columns=["batch_size", "steps"])
        (answer,) = fit_table(table, replace(self.config, resamples=100), unit="samples").answers
        return answer.critical.value, answer.min_steps.value


def jackknifed(value: float | None, rest: Sequence[float | None], confidence: float) -> Interval:
    """Interval of a positive number from its values without each of n independent parts, by Student's t on the log
    axis (Efron & Tibshirani 1993, "An Introduction to the Bootstrap", chapter 11)."""
    if value is None or not all(rest):
        return OPEN
    logs, count = np.log(np.array(rest, float)), len(rest)
    error = math.sqrt((count - 1) / count * float(((logs - logs.mean()) ** 2).sum()))
    reach = float(stdtrit(count - 1, 0.5 + confidence / 2)) * error
    return value * math.exp(-reach), value * math.exp(reach)


def _over(predicted: Quantity, measured: Quantity) -> Quantity:
    """Ratio of two independent numbers; an end is open where one of theirs is."""
    if predicted.value is None or measured.value is None:
        return UNKNOWN
    low, high = measured.interval
    inverse = 1.0 / measured.value, (1.0 / high if high else None, 1.0 / low if low else None)
    return Quantity(predicted.value / measured.value, product_ends((predicted.value, predicted.interval), inverse))


def _verdict(name: str, predicted: Quantity, measured: Quantity, ratio: Quantity) -> str:
    (low, high), says = ratio.interval, f"{name} {with_interval(predicted.value, predicted.interval)} predicted"
    if predicted.value is None:
        return f"the prediction of {name} lies beyond the batch sizes"
    if measured.value is None:
        return f"{says}, and the sweep does not determine it"
    says += f", {with_interval(measured.value, measured.interval)} measured"
    if low is None or high is None:
        return f"{says}: without both intervals nothing can be said of {name}"
    times = f"{with_interval(ratio.value, ratio.interval)} times the measured one"
    if not low <= 1.0 <= high:
        return f"{says}: the prediction of {name} does not hold, it is {times}"
    if high / low > FACTOR:
        return f"{says}: the prediction of {name} is not contradicted, but it is {times}, which says little"
    return f"{says}: the prediction of {name} holds, it is {times}"
