"""Synthetic runs whose noise scale grows along the way, so that every schedule's steps are known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cbs.registry.choices import Choice
from cbs.trial.config import EvaluationPlan, Schedule, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from tests.factories import trial

TARGET = Target(metric="validation_loss", value=2.0)
_FINE = 4000


@dataclass(frozen=True, kw_only=True)
class Growing:
    """Progress s in steps without noise; the noise scale is ``level * (s / end) ** power``, the loss falls as
    ``s ** -0.3`` to the target at ``end``.

    Attributes:
        noise: standard deviation of the log steps of a seed; half of its variance drifts along the run.
    """

    level: float = 64.0
    power: float = 0.5
    end: float = 200.0
    noise: float = 0.03

    @property
    def progress(self) -> np.ndarray:
        return self.end * np.linspace(0.0, 1.0, _FINE + 1) ** 3

    @property
    def noise_scale(self) -> np.ndarray:
        """In every piece between two points of the progress, shape ``[_FINE]``: its mean."""
        whole = self.level * self.end / (self.power + 1) * (self.progress / self.end) ** (self.power + 1)
        return np.diff(whole) / np.diff(self.progress)

    @property
    def asymptotes(self) -> tuple[float, float]:
        return self.end, self.level * self.end / (self.power + 1)

    def loss(self, progress: np.ndarray) -> np.ndarray:
        return 1.0 + (TARGET.value - 1.0) * (np.maximum(progress, 1e-9) / self.end) ** -0.3

    def steps(self, batch_size: float) -> np.ndarray:
        """To every point of the progress."""
        return np.concatenate([[0.0], np.cumsum(np.diff(self.progress) * (1 + self.noise_scale / batch_size))])

    def along(self, starts: Sequence[float], sizes: Sequence[float]) -> tuple[float, float]:
        """Steps and examples of a table of stages, piece by piece."""
        steps = examples = 0.0
        stage = 0
        for length, scale in zip(np.diff(self.progress), self.noise_scale, strict=True):
            while stage + 1 < len(starts) and examples >= starts[stage + 1]:
                stage += 1
            taken = length * (1 + scale / sizes[stage])
            steps, examples = steps + taken, examples + taken * sizes[stage]
        return steps, examples

    def gamma(self, steps: float, examples: float) -> float:
        fewest, cheapest = self.asymptotes
        return (steps / fewest - 1) * (examples / cheapest - 1)


def growing_sweep(
    root: Path,
    truth: Growing,
    *,
    batch_sizes: Sequence[int] = (4, 8, 16, 32, 64, 128, 256, 512),
    lrs: Sequence[float] = tuple(1e-3 * 2.0**power for power in range(6)),
    seeds: int = 3,
    seed: int = 0,
    lr_power: float = 0.4,
    growth: float = 1.08,
) -> Path:
    """A sweep of constant batch sizes; the best learning rate is ``1e-3 B ** lr_power``."""
    store = Store(root)
    store.prepare()
    store.write_manifest({"name": "growing", "recipe": "growing", "protocol": {"prune_factor": None}})
    rng = np.random.default_rng(seed)
    plan = EvaluationPlan(growth=growth, far_growth=growth)
    place = np.log(np.maximum(truth.progress, 1e-3) / truth.end)
    for size in batch_sizes:
        whole = truth.steps(size)
        for column in range(seeds):
            level, drift = rng.standard_normal(2) * truth.noise / math.sqrt(2)
            warped = whole * np.exp(level + drift * np.clip(1 + place / 2, -2, 1))
            for lr in lrs:
                steps = warped * math.exp(0.25 * math.log(lr / (1e-3 * size**lr_power)) ** 2)
                steps = np.maximum.accumulate(steps)
                rows, step = [(0, 10.0)], 1
                while True:
                    progress = np.interp(step, steps, truth.progress)
                    if step > steps[-1]:
                        progress = truth.end * (step / steps[-1])
                    rows.append((step, float(truth.loss(np.array(progress)))))
                    if TARGET.reached(rows[-1][1]):
                        break
                    step = min(plan.next_step(step, 0.0), int(1.08 * steps[-1]) + 1)
                config = TrialConfig(
                    workload=Choice(name="synthetic"), optimizer=Choice(name="adamw"), lr=lr, batch_size=size,
                    seed=column, target=TARGET, max_steps=10**6, schedule=Schedule(warmup_examples=10 * size),
                    evaluation=plan,
                )  # fmt: skip
                store.save(trial(config, rows, TrialStatus.REACHED))
    return root
