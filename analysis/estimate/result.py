"""The answer per optimizer and target: critical batch size, interval, verdict, and the noise scale beside it."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.along_training import ALONG_TRAINING
from analysis.estimate.diagnosis import Doubts, Verdict
from analysis.estimate.draws import Draws
from analysis.estimate.noise import EUCLIDEAN, NoiseScale, NoiseScales, near
from analysis.estimate.prior import StepsCurve
from analysis.estimate.studies import Point, Study
from analysis.formatting import plain, shown
from analysis.quantities import OPEN, UNKNOWN, Array, Interval, Quantity, interval
from analysis.read.groups import Group
from cbs.trial.record import GeometryColumns
from cbs.trial.target import Target


@dataclass(frozen=True, kw_only=True)
class CriticalBatchSize(Quantity):
    """A critical batch size by one definition, in examples; no value if the data do not bound it, or the definition
    does not apply.

    Attributes:
        options: the options it was evaluated with.
        remark: a remark on the value; empty if there is none.
        drawn: its value on every draw, shape ``[R]``; 0, infinity or NaN as :class:`Definition` describes.
    """

    definition: str
    options: dict[str, Any]
    remark: str = ""
    drawn: Array = field(default_factory=lambda: np.empty(0), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values without the draws."""
        content = shown(self)
        return {"critical_batch_size": content.pop("value"), **content}


@dataclass(frozen=True, kw_only=True)
class Hyperbola:
    """Quantities of the same trials if the curve is assumed to be the hyperbola (exponent 1).

    Attributes:
        critical_batch_size: ``E_min / S_min`` in examples.
        min_steps: ``S_min``, optimizer updates.
        curve: its draws, shape ``[R]``.
    """

    critical_batch_size: Quantity
    min_steps: Quantity
    min_examples: Quantity
    curve: StepsCurve = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return _pairs(self, "critical_batch_size", "min_steps", "min_examples")


@dataclass(frozen=True, kw_only=True)
class BatchDoubling:
    """What twice the batch size buys.

    Attributes:
        batch_size: from which it is doubled, in examples.
        steps_saved: fraction of the steps to the target that is saved; at most a half by perfect scaling.
        examples_added: fraction by which the examples to the target grow.
    """

    batch_size: float
    steps_saved: Quantity
    examples_added: Quantity

    def to_json(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, **_pairs(self, "steps_saved", "examples_added")}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer for one optimizer at one target.

    Attributes:
        studies, points: one per batch size, in increasing order.
        draws: draws of the curve; ``None`` if the target was reached at fewer than two batch sizes.
        definitions: the critical batch size by every definition, by name.
        near: range of batch sizes in which steps times examples are within 10 % of the least; an end beyond the
            measured ones is ``None``.
        doublings: what doubling buys, from every measured batch size.
        min_steps, exponent: ``S_min`` (optimizer updates) and exponent of the fitted law, extrapolated.
        hyperbola: quantities with the exponent fixed at 1; ``None`` without draws.
        verdict: the most serious objection to the answer.
        advice: what to change; empty if nothing is missing.
        easier: a target that was reached at every batch size, where this one was not; ``None`` if there is none.
        doubts: what may speak against it.
        noise: noise scales by batch size, for the batch sizes that reached the target.
        along: curves by their names in :data:`~analysis.estimate.along_training.ALONG_TRAINING` and by batch size.
        clipped: fraction of steps to the target whose gradients were clipped, mean over seeds, by batch size; without
            batch sizes whose trials do not clip.
    """

    group: Group
    target: Target
    config: AnalysisConfig
    studies: tuple[Study, ...] = field(repr=False)
    points: tuple[Point, ...]
    draws: Draws | None = field(repr=False)
    definitions: dict[str, CriticalBatchSize]
    near: Interval = OPEN
    doublings: tuple[BatchDoubling, ...] = ()
    min_steps: Quantity = UNKNOWN
    exponent: Quantity = UNKNOWN
    hyperbola: Hyperbola | None = None
    verdict: Verdict
    advice: str
    easier: Target | None = None
    doubts: Doubts = field(default=Doubts(), repr=False)
    noise: dict[int, NoiseScales] = field(default_factory=dict, repr=False)
    along: dict[str, dict[int, pd.DataFrame]] = field(default_factory=dict, repr=False)
    clipped: dict[int, float] = field(default_factory=dict)

    @property
    def confidence(self) -> float:
        return self.config.confidence

    @property
    def critical(self) -> CriticalBatchSize:
        """Critical batch size by the chosen definition; the others are in ``definitions``."""
        return self.definitions[self.config.definition]

    @property
    def critical_batch_size(self) -> float | None:
        return self.critical.value

    @property
    def interval(self) -> Interval:
        return self.critical.interval

    @property
    def judgement(self) -> str:
        """The verdict, unless it is ok, and the advice; empty without either."""
        return self.advice if self.verdict is Verdict.OK else f"{self.verdict}: {self.advice}"

    @property
    def geometry(self) -> GeometryColumns | None:
        """The optimizer's own geometry that was stored; the plain one if there is no other, ``None`` if there is
        none."""
        geometries = [noise.geometry for noise in self.noise.values() if noise.geometry]
        return min(geometries, key=lambda entry: entry.geometry == EUCLIDEAN, default=None)

    @property
    def noise_scale(self) -> NoiseScale:
        """The simple noise scale that represents the optimizer, see :func:`analysis.estimate.noise.near`."""
        return near({size: noise.summary for size, noise in self.noise.items()}, self.critical_batch_size)

    @property
    def matched_noise_scale(self) -> NoiseScale:
        """The noise scale in :attr:`geometry` that represents the optimizer; equals ``noise_scale`` in the plain
        one."""
        return near({size: noise.matched for size, noise in self.noise.items()}, self.critical_batch_size)

    @property
    def matched_geometry(self) -> str:
        return self.geometry.geometry if self.geometry else EUCLIDEAN

    @property
    def noise_scale_ratio(self) -> Quantity:
        """Noise scale divided by the critical batch size.

        The two are treated as independent: they come from the same trials, but one from gradients, the other from
        crossings of the target.
        """
        return self.noise_scale.over(self.critical)

    @property
    def matched_noise_scale_ratio(self) -> Quantity:
        return self.matched_noise_scale.over(self.critical)

    @property
    def examples_at_critical(self) -> Quantity:
        """Examples to the target at the critical batch size of the chosen definition; no value where that has none, or
        lies beyond the measured batch sizes."""
        draws, size = self.draws, self.critical_batch_size
        if draws is None or size is None or not draws.batch_sizes[0] <= size <= draws.batch_sizes[-1]:
            return UNKNOWN
        at = np.array([size])
        drawn = np.exp(draws.drawn(at)[:, 0])
        return Quantity(math.exp(draws.estimate(at)[0]), interval(drawn, self.confidence)).times(size)

    def to_json(self) -> dict[str, Any]:
        group, draws = self.group, self.draws
        noise: dict[str, Any] = {}
        for kind, scale, ratio in (
            ("simple", self.noise_scale, self.noise_scale_ratio),
            ("matched", self.matched_noise_scale, self.matched_noise_scale_ratio),
        ):
            name = f"{kind}_noise_scale"
            noise |= scale.named(name) | {f"{name}_note": scale.note} | ratio.named(f"{name}_ratio")
        return {
            **group.whose,
            "optimizer_options": group.choice.options,
            **({"tuned": list(group.tuned)} if group.tuned else {}),
            "target": self.target.to_json(),
            "definition": self.config.definition,
            "critical_batch_size": self.critical_batch_size,
            "interval": list(self.interval),
            "definitions": [entry.to_json() for entry in self.definitions.values()],
            "within_10_percent": list(self.near),
            "doublings": plain(self.doublings),
            **_pairs(self, "min_steps", "exponent", "examples_at_critical"),
            "hyperbola": plain(self.hyperbola),
            **self.doubts.to_json(),
            **{name: getattr(group, name) for name in ("example_unit", "tokens_per_example", "metric_unit")},
            "residual_rms": draws.residual_rms if draws else None,
            "seed_deviation": draws.deviation if draws and draws.freedom else None,
            "shared_by_seeds": draws.shared if draws and draws.freedom else None,
            "verdict": str(self.verdict),
            "advice": self.advice,
            "points": [self._point(entry) for entry in self.points],
            **{
                name: [
                    {"batch_size": size} | row
                    for size, table in self.along.get(name, {}).items()
                    for row in told(table, self.confidence)
                ]
                for name in ALONG_TRAINING
                if (told := ALONG_TRAINING[name].told)
            },
            "matched_geometry": self.matched_geometry,
            "matched_symbol": self.geometry.symbol if self.geometry else None,
            "matched_exponent": self.geometry.exponent if self.geometry else None,
            **noise,
        }

    def _point(self, entry: Point) -> dict[str, Any]:
        measured = self.noise.get(entry.batch_size)
        return entry.to_json() | {
            "simple_noise_scale": measured.summary.value if measured else None,
            "matched_noise_scale": measured.matched.value if measured else None,
            "clipped_share": self.clipped.get(entry.batch_size),
        }


def _pairs(of: Any, *names: str) -> dict[str, Any]:
    return {key: value for name in names for key, value in getattr(of, name).named(name).items()}
