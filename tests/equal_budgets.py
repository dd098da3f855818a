"""Sweeps to a budget on disk whose losses follow McCandlish's form, so that every answer is known in closed form."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cbs.trial.config import Choice, Schedule, TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from tests.factories import TEXT

SIZES = (4, 8, 16, 32, 64, 128)
BUDGET = 65536


@dataclass(frozen=True, kw_only=True)
class World:
    """``loss = floor + gap (E / (1 + B/critical) / BUDGET)^-exponent + bend ln(lr/best)^2``, best = 1e-3 sqrt(B)."""

    floor: float = 2.0
    gap: float = 1.0
    exponent: float = 0.1
    critical: float = 256.0
    bend: float = 0.02
    fails_above: float = math.inf
    """Factor on the best learning rate from which on runs diverge."""

    def loss(self, batch_size: float, lr: float, examples: float) -> float:
        worth = examples / (1 + batch_size / self.critical) / BUDGET
        return self.floor + self.gap * worth**-self.exponent + self.bend * math.log(lr / best_lr(batch_size)) ** 2

    def excess(self, batch_size: float) -> float:
        least = min(SIZES)
        return self.loss(batch_size, best_lr(batch_size), BUDGET) - self.loss(least, best_lr(least), BUDGET)


def best_lr(batch_size: float) -> float:
    return 1e-3 * math.sqrt(batch_size)


RATES = tuple(2.0**power for power in (-2, -1, 0, 1, 2))  # Learning rates over 1.1 times the best one


def write(
    root: Path,
    worlds: dict[str, World],
    *,
    sizes: Sequence[int] = SIZES,
    seeds: int = 3,
    noise: float = 0.0005,
    budget: int = BUDGET,
    rates: Sequence[float] = RATES,
    metric: str = "validation_loss",
    direction: str = "below",
    growth: float = 1.2,
    schedule: Schedule | None = None,
    peak: Callable[[float], float] = lambda share: 1.0,
    seed: int = 0,
    name: str = "budget",
    ends: Callable[[int, float, int], tuple[float, TrialStatus]] = lambda *_: (1.0, TrialStatus.BUDGET_EXHAUSTED),
    stops_at_target: bool = False,
    clip_norm: float | None = None,
) -> None:
    """Write a sweep.

    Args:
        peak: learning rate over its peak after this share of the budget.
        ends: batch size, learning rate, seed -> share of the budget that a run saw, and how it ended.
    """
    store, sign = Store(root), 1.0 if direction == "below" else -1.0
    store.prepare()
    protocol = {"prune_factor": None, "stops_at_target": stops_at_target, "clip_norm": clip_norm}
    store.write_manifest({"name": name, "recipe": name, "protocol": protocol})
    rng = np.random.default_rng(seed)
    target = Target(metric=metric, value=sign * 1.0, direction=direction)  # type: ignore[arg-type]
    for optimizer, world in worlds.items():
        for size in sizes:
            shared = rng.standard_normal(seeds)
            for rate in rates:
                for column in range(seeds):
                    lr = 1.1 * rate * best_lr(size)
                    config = TrialConfig(
                        workload=Choice(name="synthetic"), optimizer=Choice(name=optimizer), lr=lr, batch_size=size,
                        seed=column, target=target, max_steps=round(budget / size), schedule=schedule or Schedule(),
                    )  # fmt: skip
                    off = noise * (shared[column] + rng.standard_normal()) / math.sqrt(2)
                    share, status = ends(size, lr, column)
                    if lr > world.fails_above * best_lr(size):
                        share, status = 0.1, TrialStatus.DIVERGED
                    steps, step = [0], 1
                    while step < round(share * budget / size):
                        steps.append(step)
                        step = max(step + 1, int(step * growth))
                    steps.append(round(share * budget / size))
                    rows = [
                        Measurement(
                            step=step,
                            examples=step * size,
                            value=sign * (world.loss(size, lr, max(step, 0.5) * size) + off),
                            train_loss=world.loss(size, lr, max(step, 0.5) * size) - 1.0,
                            lr=lr * peak(step * size / budget) if step else 0.0,
                        )
                        for step in steps
                    ]
                    at = (steps[-1], steps[-1] * size, 1.0)  # of all steps one: this question reads evaluations
                    if status is TrialStatus.DIVERGED:
                        rows[-1] = Measurement(**{**vars(rows[-1]), "value": math.nan})
                    store.save(
                        TrialResult(
                            config=config, status=status, evaluations=rows,
                            steps_to_target=float(steps[-1]) if status is TrialStatus.REACHED else None,
                            steps=dict(zip(("step", "examples", "train_loss"), np.array(at)[:, None], strict=True)),
                            workload=TEXT,
                        )
                    )  # fmt: skip
