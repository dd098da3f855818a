"""Branches of checkpoints on disk, whose expected excess losses are known in closed form."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cbs.trial.config import Choice, TrialConfig
from cbs.trial.parent import Parent
from cbs.trial.record import GeometryColumns, Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from tests.factories import TEXT

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
BASE = 16
WINDOW = 2048
TRUNK = "0123456789abcdef"


def critical(examples: float) -> float:
    """The k at which the excess is 0.01."""
    return 2.0 * math.sqrt(examples / 10_000)


def excess(factor: float, at: float) -> float:
    """Of the loss of a branch, 0.01 at the factor ``at``; convex in ln k."""
    return 0.01 * (factor / at) ** 1.5


def write(
    root: Path,
    *,
    optimizers: Sequence[str] = ("adamw",),
    checkpoints: Sequence[int] = (10_000, 40_000, 160_000),
    factors: Sequence[float] = FACTORS,
    seeds: int = 4,
    noise: float = 0.002,
    common: float = 0.004,
    at: Callable[[str, int], float] = lambda optimizer, examples: critical(examples),
    slow: float = 1.0,
    lr_factors: Sequence[float] = (1.0,),
    diverged: Callable[[float], bool] = lambda factor: False,
    direction: str = "below",
    source: str = TRUNK,
    moments: bool = True,
    seed: int = 0,
    name: str = "branches",
    options: dict[str, Any] | None = None,
) -> None:
    """Write a sweep of branches.

    Args:
        at: optimizer, examples -> the k at which the excess is 0.01.
        slow: k* after the whole window over that after half of it.
        noise: deviation of one branch beside ``common``, what a seed does to all of them.
        lr_factors: over the root of k; the loss is least at the middle one.
        options: of the workload.
        moments: whether the steps have gradient moments of a noise scale of 50 examples.
    """
    store, sign = Store(root), 1.0 if direction == "below" else -1.0
    store.prepare()
    store.write_manifest({"name": name, "recipe": name, "protocol": {"prune_factor": None, "stops_at_target": False}})
    rng = np.random.default_rng(seed)
    target = Target(metric="validation_loss", value=sign * 1.0, direction=direction)  # type: ignore[arg-type]
    for optimizer in optimizers:
        for born in checkpoints:
            level, star = 3.0 + 0.5 * math.log10(160_000 / max(born, 1)), at(optimizer, born)
            for column in range(seeds):
                shared = common * rng.standard_normal()
                for factor in factors:
                    own = noise * rng.standard_normal()
                    for rate in lr_factors:
                        size, lr = round(factor * BASE), 1e-3 * rate * math.sqrt(factor)
                        config = TrialConfig(
                            workload=Choice(name="synthetic", options=options or {}),
                            optimizer=Choice(name=optimizer), lr=lr, batch_size=size, seed=column, target=target,
                            max_steps=WINDOW // size, stops_at_target=False,
                            parent=Parent(
                                source=source, examples=born, digest=f"{born:016x}", batch_factor=factor,
                                lr_factor=rate * math.sqrt(factor),
                            ),
                        )  # fmt: skip
                        bent = 0.05 * math.log(rate / lr_factors[len(lr_factors) // 2]) ** 2
                        steps = [0, *(step for step in range(1, WINDOW // size) if step % max(1, 32 // size) == 0)]
                        steps.append(WINDOW // size)

                        def loss(examples: float, bent: float = bent, factor: float = factor, level: float = level,
                                 star: float = star, shared: float = shared, own: float = own) -> float:  # fmt: skip
                            if not examples:
                                return level
                            # k* moves with the logarithm of the examples, by ``slow`` for the last half
                            here = star * slow ** (math.log2(examples / WINDOW))
                            return level - 0.1 + excess(factor, here) + bent + shared + own

                        fails = diverged(factor)
                        rows = [
                            Measurement(step=step, examples=step * size, value=sign * loss(step * size),
                                        train_loss=loss(step * size), lr=lr)
                            for step in (steps[: len(steps) // 2 + 1] if fails else steps)
                        ]  # fmt: skip
                        count = rows[-1].step
                        store.save(
                            TrialResult(
                                config=config, evaluations=rows, steps_to_target=None,
                                status=TrialStatus.DIVERGED if fails else TrialStatus.BUDGET_EXHAUSTED,
                                steps={
                                    "step": np.arange(1, count + 1),
                                    "examples": np.arange(1, count + 1) * size,
                                    "train_loss": np.array([loss(step * size) for step in range(1, count + 1)]),
                                } | (_moments(count, size, rng) if moments else {}),
                                geometries=(
                                    GeometryColumns(geometry="l2", symbol="B", exponent=1, signal="grad_sq_norm",
                                                    noise="noise_trace"),
                                ) if moments else (),
                                workload=TEXT,
                            )
                        )  # fmt: skip


def _moments(steps: int, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "grad_sq_norm": 0.1 * rng.gamma(20.0, 1 / 20.0, steps),
        "noise_trace": 5.0 * rng.gamma(20.0, 1 / 20.0, steps),
    }
