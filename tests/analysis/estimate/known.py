"""Studies of known steps, and draws of known curves."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from analysis.estimate.best_rate import AtBest
from analysis.estimate.draws import Draws, draw
from analysis.estimate.studies import Study
from analysis.read.groups import Group
from cbs.trial.config import Choice
from cbs.trial.target import Target

SIZES = 2.0 ** np.arange(1, 9)
STEPS, CRITICAL = 175.0, 42.0

GROUP = Group(
    sweep="sweep", folder=Path(), workload="workload", optimizer="adamw", choice=Choice(name="adamw"),
    workload_options={},
    parameters=None, target=Target(metric="loss", value=2.0), stops_at_target=False, prune_factor=None,
    example_unit="sequence", tokens_per_example=None, metric_unit="nats",
)  # fmt: skip


def hyperbola(sizes: np.ndarray = SIZES, critical: float = CRITICAL, exponent: float = 1.0) -> np.ndarray:
    """``ln S``, shape as ``sizes``."""
    return np.asarray(np.log(STEPS) + np.log1p((critical / sizes) ** exponent))


def known(
    values: np.ndarray, floors: np.ndarray | None = None, ceilings: np.ndarray | None = None, variance: float = 0.0
) -> list[AtBest]:
    """The objective of conditions, rows of ``[M, N]``, with its bounds."""
    nothing = np.full(np.shape(values), np.nan)
    rows = zip(values, nothing if floors is None else floors, nothing if ceilings is None else ceilings, strict=True)
    return [AtBest(values=v, floors=low, ceilings=high, variance=variance) for v, low, high in rows]


def exact(curve: Callable[[np.ndarray], np.ndarray], sizes: np.ndarray = SIZES, count: int = 400) -> Draws:
    """Draws of ``ln S`` over batch sizes known without noise."""
    return draw(sizes.tolist(), known(np.repeat(curve(sizes)[:, None], 3, axis=1)), count, 0)


def noisy(
    rng: np.random.Generator, own: float, seeds: int = 3, common: float = 0.0, curve: np.ndarray | None = None
) -> np.ndarray:
    """``ln S`` of every (batch size, seed), with noise of its own and of the seed, shape ``[M, N]``."""
    means = hyperbola() if curve is None else curve
    return np.asarray(
        means[:, None] + own * rng.standard_normal((len(means), seeds)) + common * rng.standard_normal(seeds)
    )


def study(
    batch_size: int,
    logs: np.ndarray,
    log_lrs: Sequence[float] | np.ndarray | None = None,
    *,
    status: np.ndarray | None = None,
    bound: np.ndarray | None = None,
    resolution: float = 0.0,
    warmup: float = 0.0,
    interpolated: bool = True,
) -> Study:
    """A study with ``ln S`` of every (learning rate, seed); what is NaN was not run unless ``status`` says how it
    ended. Without learning rates they are not stated."""
    table = np.atleast_2d(logs)
    there = np.isfinite(table)
    return Study(
        batch_size=batch_size,
        lrs=np.full(len(table), np.nan) if log_lrs is None else np.exp(np.asarray(log_lrs, dtype=float)),
        seeds=np.arange(table.shape[1]),
        steps=np.exp(table),
        status=np.where(there, "REACHED", "").astype(object) if status is None else status,
        bound=np.full(table.shape, np.nan) if bound is None else bound,
        trials=np.arange(table.size).reshape(table.shape),
        resolution=resolution * np.exp(table),
        warmup=warmup,
        interpolated=interpolated,
    )
