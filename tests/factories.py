"""Synthetic sweeps on disk, drawn from a known curve, so that every answer is known in closed form."""

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cbs.registry.choices import parse_choice
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.record import GeometryColumns, Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.trial.store import Store
from cbs.trial.target import Target

TARGET = Target(metric="validation_loss", value=2.4)
SLOPE = 0.3
START = 5.6
PROBE_COLUMNS = ("small_batch_size", "small_grad_sq_norm", "big_grad_sq_norm", "grad_sq_norm", "noise_trace")


TEXT = WorkloadInfo(
    example_unit="sequence", tokens_per_example=32, metric_unit="nats/byte", parameters=29856, data_hash="abc"
)
"""What trials say of their workload."""


def quadratic(
    optimizer: str | Choice, workload: dict[str, Any] | None = None, *, target: float, **settings: Any
) -> TrialConfig:
    """A trial of an optimizer, ``name(option=value, ...)``, on the noisy quadratic with these options."""
    return TrialConfig(
        workload=Choice(name="noisy_quadratic", options=workload or {}),
        optimizer=parse_choice(optimizer) if isinstance(optimizer, str) else optimizer,
        target=Target(metric="validation_loss", value=target),
        **settings,
    )


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Steps to target of one optimizer: ``ln S = ln S_min + ln(1 + (B_crit/B)^exponent) + curvature/2 (ln lr - ln
    lr*(B))^2 + noise``, with ``B_crit = E_min/S_min`` and as a rule the hyperbola."""

    min_steps: float = 175.0
    min_examples: float = 7381.0
    exponent: float = 1.0
    lr_at_1: float = 1e-3
    lr_power: float = 0.4
    lr_max: float = 1e-2
    curvature: float = 0.5
    noise: float = 0.0
    common: float = 0.7
    grad_sq_norm: float = 0.5
    noise_trace: float = 20.0
    geometry: str = "l2"
    own_signal: float = 1.0
    own_noise: float = 6.0
    layers: int = 0
    clipped: tuple[int, ...] = ()
    """Steps whose gradients were clipped; none if there are none."""

    def best_lr(self, batch_size: int) -> float:
        return min(self.lr_at_1 * batch_size**self.lr_power, self.lr_max)

    def steps(self, batch_size: int, lrs: Sequence[float], seeds: int, rng: np.random.Generator) -> np.ndarray:
        """Steps to target, shape ``[learning rates, seeds]``; part of the noise is common to a seed's learning
        rates."""
        critical = self.min_examples / self.min_steps
        curve = math.log(self.min_steps) + math.log1p((critical / batch_size) ** self.exponent)
        penalty = 0.5 * self.curvature * np.log(np.asarray(lrs) / self.best_lr(batch_size)) ** 2
        shared = math.sqrt(self.common) * rng.standard_normal((1, seeds))
        own = math.sqrt(1.0 - self.common) * rng.standard_normal((len(lrs), seeds))
        return np.exp(curve + penalty[:, None] + self.noise * (shared + own))


LRS = tuple(5e-4 * 2.0**power for power in range(7))


def tables(
    truth: Truth,
    batch_sizes: Sequence[int],
    seeds: int,
    *,
    lrs: Sequence[float] = LRS,
    prune_factor: float | None = 1.3,
    seed: int = 0,
) -> list[np.ndarray]:
    """Steps to target per batch size, without going through the disk; NaN where pruned."""
    rng = np.random.default_rng(seed)
    found = []
    for batch_size in batch_sizes:
        steps = truth.steps(batch_size, lrs, seeds, rng)
        if prune_factor is not None:
            steps[steps > prune_factor * steps.min(axis=0)] = np.nan
        found.append(steps)
    return found


def curve(steps_to_target: float, plan: EvaluationPlan, *, target: Target, stop: float) -> list[tuple[int, float]]:
    """Evaluations whose value is linear in log step and crosses the target at ``steps_to_target``, up to ``stop`` steps
    or the crossing."""
    sign = 1.0 if target.direction == "below" else -1.0
    rows = [(0, target.value + sign * (START - TARGET.value))]
    step = 1
    while True:
        step = min(step, max(1, math.floor(stop)))
        value = target.value + sign * SLOPE * math.log(steps_to_target / step)
        rows.append((step, value))
        if target.reached(value) or step >= math.floor(stop):
            return rows
        step = plan.next_step(step, 0.0)


def trial(
    config: TrialConfig,
    rows: Sequence[tuple[int, float]],
    status: TrialStatus,
    *,
    truth: Truth | None = None,
    data_hash: str | None = "abc",
) -> TrialResult:
    """A result with the given evaluation curve; with ``truth`` also with constant gradient moments on every step."""
    evaluations = [
        Measurement(step=step, examples=step * config.batch_size, value=value, train_loss=value, lr=config.lr)
        # seeds without noise are no copies of one run
        for step, value in ((step, value + 1e-12 * config.seed) for step, value in rows)
    ]
    last = rows[-1][0]
    steps = np.arange(1, last + 1)
    columns: dict[str, np.ndarray] = {
        "step": steps,
        "examples": steps * config.batch_size,
        "train_loss": np.full(last, 1.0),
    }
    columns |= _moments(config, truth, last)
    own = [truth.geometry] if truth and truth.geometry != "l2" else []
    for layer in range(1, 1 + (truth.layers if truth else 0)):
        columns[f"max_attention_logit_layer_{layer}"] = attention_logit(layer, steps, config.seed)
    if truth and truth.clipped:
        columns["clipped"] = np.isin(steps, truth.clipped).astype(float)
    crossing = config.target.crossing([row[0] for row in rows], [row[1] for row in rows])
    return TrialResult(
        config=config,
        status=status,
        steps_to_target=crossing if status is TrialStatus.REACHED else None,
        evaluations=evaluations,
        steps=columns,
        geometries=tuple(map(geometry_columns, ["l2", *own])) if truth else (),
        workload=replace(TEXT, data_hash=data_hash),
    )


def inside(interval: tuple[float | None, float | None], value: float) -> bool:
    """Whether an interval, of which an end may be open, holds a value."""
    low, high = interval
    return (low is None or low <= value) and (high is None or value <= high)


def geometry_columns(name: str) -> GeometryColumns:
    """What the trials say of a geometry; the symbol is nobody else's."""
    signal, noise = PROBE_COLUMNS[-2:] if name == "l2" else (f"{name}_signal", f"{name}_noise")
    exponent = 2 if name in ("l1", "nuclear") else 1
    return GeometryColumns(
        geometry=name, symbol=rf"Z_{{\mathrm{{{name}}}}}", exponent=exponent, signal=signal, noise=noise
    )


def attention_logit(layer: int, steps: np.ndarray, seed: int) -> np.ndarray:
    """Largest attention logit of a layer: grows with the square root of the steps, more in later layers and seeds."""
    return layer * (1.0 + 0.1 * seed) * np.sqrt(steps)


def _moments(config: TrialConfig, truth: Truth | None, steps: int) -> dict[str, np.ndarray]:
    if truth is None:
        return {}
    if config.batch_size == 1:
        own = [f"{truth.geometry}_signal", f"{truth.geometry}_noise"] if truth.geometry != "l2" else []
        return {name: np.full(steps, np.nan) for name in (*PROBE_COLUMNS, *own)}
    rng = np.random.default_rng(config.seed + 1000 * config.batch_size)
    small = config.batch_size / 2
    signal = truth.grad_sq_norm * np.linspace(2.0, 1.0, steps)
    noisy_small = (signal + truth.noise_trace / small) * rng.gamma(20.0, 1 / 20.0, steps)
    noisy_big = (signal + truth.noise_trace / config.batch_size) * rng.gamma(20.0, 1 / 20.0, steps)
    grad_sq_norm = (config.batch_size * noisy_big - small * noisy_small) / (config.batch_size - small)
    noise_trace = (noisy_small - noisy_big) / (1 / small - 1 / config.batch_size)
    columns = dict(
        zip(PROBE_COLUMNS, (np.full(steps, small), noisy_small, noisy_big, grad_sq_norm, noise_trace), strict=True)
    )
    if truth.geometry != "l2":
        for part, mean in (("signal", truth.own_signal), ("noise", truth.own_noise)):
            columns[f"{truth.geometry}_{part}"] = mean * rng.gamma(20.0, 1 / 20.0, steps)
    return columns


def sweep(root: Path, optimizers: Mapping[str, Truth] | None = None, **options: Any) -> Store:
    """Write a whole sweep, see :func:`_written`; one that is asked for again is kept, and copied from then on."""
    key = repr((optimizers, options))
    if key not in _ASKED:
        _ASKED[key] = Path(_FOLDER.name) / str(len(_ASKED))
        _written(root, optimizers, **options)
        return Store(root)
    if not _ASKED[key].exists():
        _written(_ASKED[key], optimizers, **options)
    shutil.copytree(_ASKED[key], root, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return Store(root)


_FOLDER = tempfile.TemporaryDirectory(prefix="cbs-tests-")
_ASKED: dict[str, Path] = {}


def _written(
    root: Path,
    optimizers: Mapping[str, Truth] | None = None,
    *,
    variants: bool = False,
    batch_sizes: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256),
    lrs: Sequence[float] = LRS,
    seeds: int = 1,
    prune_factor: float | None = 1.3,
    stop_slow: bool = True,
    max_steps: int = 1_000_000,
    target: Target = TARGET,
    options: dict[str, Any] | None = None,
    moments: bool = False,
    growth: float = 1.04,
    warmup_steps: int = 10,
    seed: int = 0,
    name: str = "synthetic",
    workload: str = "synthetic",
) -> None:
    """Write a whole sweep.

    Args:
        root: folder of the sweep.
        optimizers: name -> truth.
        variants: whether the names hold options, ``name(option=value, ...)``.
        stop_slow: stop trials beyond ``prune_factor``; otherwise they run to the target, as when the bound came too
            late.
        max_steps: budget of every trial.
        moments: also write the columns of the two-batch probe, and of the attention logits of so many layers as the
            truth has.
    """
    store = Store(root)
    store.prepare()
    store.write_manifest({"name": name, "recipe": name, "protocol": {"prune_factor": prune_factor}})
    rng = np.random.default_rng(seed)
    plan = EvaluationPlan(growth=growth, far_growth=max(growth, 1.15))
    for optimizer, truth in (optimizers or {"adamw": Truth()}).items():
        choice = parse_choice(optimizer) if variants else Choice(name=optimizer, options=options or {})
        for batch_size in batch_sizes:
            steps = truth.steps(batch_size, lrs, seeds, rng)
            for column in range(seeds):
                best = steps[:, column].min()
                for row, lr in enumerate(lrs):
                    config = TrialConfig(
                        workload=Choice(name=workload),
                        optimizer=choice,
                        lr=lr,
                        batch_size=batch_size,
                        seed=column,
                        target=target,
                        max_steps=max_steps,
                        schedule=Schedule(warmup_examples=warmup_steps * batch_size),
                        evaluation=plan,
                    )
                    store.save(
                        _run(
                            config,
                            steps[row, column],
                            best,
                            prune_factor if stop_slow else None,
                            truth if moments else None,
                        ),
                        flushed=False,
                    )


def _run(
    config: TrialConfig, steps: float, best: float, prune_factor: float | None, truth: Truth | None
) -> TrialResult:
    rows = curve(steps, config.evaluation, target=config.target, stop=config.max_steps)
    if prune_factor is not None and best <= config.max_steps:
        late = next((index for index, (step, _) in enumerate(rows) if step > prune_factor * best), None)
        if late is not None and not config.target.reached(rows[late][1]):
            return trial(config, rows[: late + 1], TrialStatus.PRUNED, truth=truth)
    reached = config.target.reached(rows[-1][1])
    return trial(config, rows, TrialStatus.REACHED if reached else TrialStatus.BUDGET_EXHAUSTED, truth=truth)
