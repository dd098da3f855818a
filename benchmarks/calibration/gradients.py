"""Noise scales along runs against the closed form: every source and geometry at the best setting nearest to B_crit.

Given the parameters, the moments of a step have a known expectation (:mod:`tests.references.noise_scale`), and so have
they over runs, as the parameters of a linear method are normal around 0: ``E G'WG = sum w h^2 s_k`` with ``s_k`` the
second moments of :class:`.first_passage.Walk`, and of the norm ``|g|_1`` of a batch's gradient, whose entries are
normal, ``sqrt(2/pi) sum sqrt(h^2 s_k + c/B)``. What a source reads is held against the first, where runs went against
the second. An interval is held against the moments of its own run, as that is what it speaks of.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.estimate.noise import pooled_ratio
from benchmarks.calibration.cases import TARGET, Case
from benchmarks.calibration.first_passage import Walk
from benchmarks.calibration.truth import Best, Truth, at_nearest
from cbs.compute import seeding
from cbs.training.run import run_trial
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialResult
from cbs.workloads import build_workload
from cbs.workloads.noisy_quadratic import NoisyQuadraticWorkload, QuadraticModel
from docs.examples.hessian_noise_scale import hessian_moments
from tests.references import noise_scale as theory

SOURCES = ("split", "accumulation", "per_example")
GROUPS = 4  # Micro-batches of ``accumulation``
FIRST_SEED = 1_000_000  # Far from those of the replicates


class Watched(NoisyQuadraticWorkload):
    """The workload, which keeps the parameters of every step."""

    def __init__(self, quadratic: NoisyQuadraticWorkload) -> None:
        super().__init__(quadratic.curvature, quadratic.noise)
        self.thetas: list[np.ndarray] = []
        self._version = -1

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Loss of every example, shape ``[examples]``."""
        theta = next(model.parameters())
        if theta._version != self._version:
            self._version = theta._version
            self.thetas.append(theta.detach().double().numpy().copy())
        return super().example_losses(model, batch)


@dataclass(frozen=True)
class Setting:
    """A case at one batch size and learning rate.

    Attributes:
        case: the optimizer.
        best: batch size, learning rate and steps.
    """

    case: Case
    best: Best
    walk: Walk = field(init=False)

    def __post_init__(self) -> None:
        walk = Walk(self.case.theory, self.best.lr, self.best.batch_size, self.case.momentum, self.case.power)
        object.__setattr__(self, "walk", walk)

    @property
    def steps(self) -> int:
        """Of a run to the target."""
        return round(self.best.steps)

    def weights(self, geometry: str) -> np.ndarray:
        """W of the moments ``G'WG``."""
        h = self.case.theory.curvature
        return {"l2": np.ones_like(h), "preconditioned": h**-self.case.power, "hessian": h}[geometry]

    def expected(self, geometry: str) -> np.ndarray:
        """Signal and noise before every step, over all runs, shape ``[2, steps]``; in ``l1`` the signal of batches."""
        h, c = self.case.theory.curvature, self.case.theory.noise
        squares = h**2 * np.array([self.walk.second_moments(step) for step in range(self.steps)])
        if geometry == "l1":
            signal = math.sqrt(2.0 / math.pi) * np.sqrt(squares + c / self.best.batch_size).sum(1)
            return np.array([signal, np.full(self.steps, np.sqrt(c).sum())])
        weights = self.weights(geometry)
        return np.array([squares @ weights, np.full(self.steps, weights @ c)])

    def true_scale(self, geometry: str) -> float:
        """The noise scale itself over the second half of the expected run."""
        h, c = self.case.theory.curvature, self.case.theory.noise
        if geometry == "l1":
            moments = [self.walk.second_moments(step) for step in range(self.steps // 2, self.steps)]
            signal = math.sqrt(2.0 / math.pi) * (h * np.sqrt(moments)).sum(1).mean()
            return float((np.sqrt(c).sum() / signal) ** 2)
        signal, noise = self.expected(geometry)[:, self.steps // 2 :].mean(1)
        return float(noise / signal)

    def of_run(self, geometry: str, thetas: Sequence[np.ndarray]) -> np.ndarray:
        """As :meth:`expected`, of the steps of one run, given where it went."""
        h, c, size = self.case.theory.curvature, self.case.theory.noise, self.best.batch_size
        if geometry == "l1":
            signals = [theory.l1_signal(h * theta, c, size) for theta in thetas]
            return np.array([signals, np.full(len(thetas), theory.l1(h, c)[1])])
        return np.array([theory.weighted(h * theta, c, self.weights(geometry)) for theta in thetas]).T


def trained(setting: Setting, source: str, seed: int, workload: Watched) -> TrialResult:
    """A run of as many steps as it takes to the target, and no target to stop at."""
    size = int(setting.best.batch_size)
    geometries = ["l2", "l1", *(["preconditioned"] if setting.case.power else [])]
    return run_trial(
        TrialConfig(
            workload=setting.case.workload,
            optimizer=setting.case.optimizer,
            lr=setting.best.lr,
            batch_size=size,
            seed=seed,
            target=type(TARGET)(metric=TARGET.metric, value=1e-9),
            max_steps=setting.steps,
            micro_batch_size=size // GROUPS if source == "accumulation" else None,
            probe=Choice(name=source, options={"every": 1, "geometry": geometries}),
            divergence_factor=1e6,
            device="cpu",
        ),
        workload=workload,
    )


def measured(setting: Setting, source: str, runs: int) -> list[dict[str, Any]]:
    """One record per geometry: see :func:`_record`."""
    quadratic = build_workload(setting.case.workload)
    assert isinstance(quadratic, NoisyQuadraticWorkload)
    seen: dict[str, list[np.ndarray]] = {}
    held: dict[str, list[bool]] = {}
    half = setting.steps // 2
    for run in range(runs):
        workload = Watched(quadratic)
        result = trained(setting, source, FIRST_SEED + run, workload)
        assert len(workload.thetas) == setting.steps == len(result.steps["step"])
        for columns in result.geometries:
            moments = np.array([result.steps[columns.signal], result.steps[columns.noise]])
            given = setting.of_run(columns.geometry, workload.thetas)
            seen.setdefault(columns.geometry, []).append(np.array([moments, given]))
            (low, high) = pooled_ratio([moments[:, half:]], exponent=columns.exponent).interval
            signal, noise = given[:, half:].mean(1)
            true = (noise / signal) ** columns.exponent
            if (low, high) != (None, None):
                held.setdefault(columns.geometry, []).append((low or 0.0) <= true <= (high or math.inf))
    return [_record(setting, source, name, np.array(both), held.get(name, [])) for name, both in seen.items()]


def _record(setting: Setting, source: str, geometry: str, both: np.ndarray, held: Sequence[bool]) -> dict[str, Any]:
    """Of both moments and halves of the run: what was read over its expectation given the parameters (``bias``), and
    that expectation over the one of all runs (``runs``), each with the standard error over runs."""
    half, expected = setting.steps // 2, setting.expected(geometry)
    found = []
    for place, name in enumerate(("signal", "noise")):
        for part, steps in (("first", slice(0, half)), ("second", slice(half, None))):
            read, given = both[:, :, place, steps].mean(2).T
            all_runs = expected[place, steps].mean()
            found.append(
                {
                    "moment": name,
                    "half": part,
                    "bias": ratio(read - given, given.mean()),
                    "runs": ratio(given - all_runs, all_runs),
                }
            )
    about = {"source": source, "geometry": geometry, "runs": len(both)}
    return about | {"moments": found, "held": int(sum(held)), "intervals": len(held)}


def ratio(differences: np.ndarray, size: float) -> tuple[float, float]:
    """Their mean in units of ``size`` and its standard error."""
    error = differences.std(ddof=1) / math.sqrt(len(differences))
    return float(differences.mean() / size), float(error / size)


def at_checkpoints(setting: Setting, draws: int) -> dict[str, Any]:
    """The bias of the Hessian-weighted moments, at parameters drawn as a run has them in its second half."""
    h, c = (torch.from_numpy(values).float() for values in (setting.case.theory.curvature, setting.case.theory.noise))
    model, size = QuadraticModel(h, c), int(setting.best.batch_size)
    rng, generator = np.random.default_rng(0), seeding.generator(FIRST_SEED, "data")
    steps = rng.integers(setting.steps // 2, setting.steps, draws)
    moments, expected = [], []
    for step in steps:
        second = setting.walk.second_moments(int(step))
        with torch.no_grad():
            model.theta.copy_(torch.from_numpy(np.sqrt(second) * rng.standard_normal(len(second))))
        examples = [c.sqrt() * torch.randn(size // 2, len(h), generator=generator) for _ in range(3)]
        seen = hessian_moments(model, lambda batch: model(batch).mean(), examples[:2], examples[2])
        moments.append((float(seen.signal.sum()), float(seen.noise.sum())))
        gradient = setting.case.theory.curvature * model.theta.detach().double().numpy()
        expected.append(theory.weighted(gradient, setting.case.theory.noise, setting.weights("hessian")))
    read, given = np.array(moments).T, np.array(expected).T
    found = [
        {"moment": name, "half": "second", "bias": ratio(read[place] - given[place], given[place].mean())}
        for place, name in enumerate(("signal", "noise"))
    ]
    return {"source": "checkpoints", "geometry": "hessian", "runs": draws, "moments": found}


def gradients(case: Case, truth: Truth, runs: int) -> dict[str, Any]:
    """Of a case: what every source and geometry reads, and the noise scales in closed form at every batch size."""
    critical = truth.estimands("trials", "exact").critical
    setting = Setting(case, at_nearest(truth, critical))
    records = [record for source in SOURCES for record in measured(setting, source, runs)]
    geometries = ["l2", "hessian", "l1", *(["preconditioned"] if case.power else [])]
    scales = {geometry: [Setting(case, best).true_scale(geometry) for best in truth.swept] for geometry in geometries}
    return {
        "batch_size": setting.best.batch_size,
        "records": [*records, at_checkpoints(setting, 10 * runs)],
        "batch_sizes": [best.batch_size for best in truth.swept],
        "scales": scales,
    }
