"""Plans of batch schedules from simulated sweeps of the noisy quadratic, run as planned under every learning-rate rule.

    python -m benchmarks.schedule_plans [--sweeps 20] [--trials 200] [--case momentum]

Every sweep has the batch sizes of a case of :mod:`benchmarks.calibration`, three seeds and learning rates a factor 1.41
apart around the best. ``cbs schedule plan`` reads it, and each of its rows is run: geometric means over the trials of
steps and examples, and the examples saved against the constant batch size of as many steps, each at its best learning
rate, from as many trials, too. Printed are how often the promised intervals held what came out, and the first plans.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import functools
import math
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.arrays import Quantity
from analysis.config import AnalysisConfig
from analysis.extensions.schedule_plan.answer import plan_schedule
from analysis.extensions.schedule_plan.of_sweep import of_sweep
from analysis.extensions.schedule_plan.plans import Ask, Outcome
from benchmarks.calibration.cases import CASES, PLAN, SEEDS, TARGET, Case
from cbs.theory.noisy_quadratic import tuned
from cbs.trial.config import Schedule, TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.trial.store import Store

RATIO = math.sqrt(2.0)
"""Between learning rates."""

AROUND = range(-2, 4)
"""Learning rates of a batch size, from the one at or below the best."""

Table = Sequence[tuple[float, int, float | Sequence[float]]]
"""Examples at which each stage begins, its batch size, and its learning rate or several."""


@functools.cache
def best_lr(name: str, batch_size: int) -> tuple[float, float]:
    """Steps of the expected loss of a case to the target, and the learning rate, at their best."""
    case = CASES[name]
    found = tuned(case.theory, case.method, TARGET.value, batch_size, case.momentum, power=case.power)
    assert found is not None
    return found.steps, found.lr


def losses(case: Case, table: Table, trials: int, rng: np.random.Generator, limit: int) -> np.ndarray:
    """Loss of every trial after every step until all have reached the target, shape ``[steps + 1, trials, L]`` with so
    many learning rates ``[L]`` in every stage of the table; those of a trial share start and noise."""
    h = case.theory.curvature.astype(np.float32)
    noise, scale = np.sqrt(case.theory.noise), case.theory.preconditioner(case.power)
    theta = rng.standard_normal((trials, 1, len(h)), dtype=np.float32)
    theta = np.repeat(theta, np.size(table[0][2]), axis=1)
    speed, seen, found = np.zeros_like(theta), 0, []
    while True:
        with np.errstate(over="ignore", invalid="ignore"):
            found.append(0.5 * np.square(theta) @ h)
        if (np.min(found, axis=0) <= TARGET.value).all() or len(found) > limit:
            return np.array(found)
        _, size, lr = [stage for stage in table if stage[0] <= seen][-1]
        kick = rng.standard_normal((trials, 1, len(h)), dtype=np.float32) * (noise / math.sqrt(size)).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            step = (np.reshape(lr, (-1, 1)) * scale).astype(np.float32) * (h * theta + kick)
            speed = np.float32(case.momentum) * speed - step
            theta += speed
        seen += size


def crossings(curves: np.ndarray) -> np.ndarray:
    """First crossing of every trial, in the logarithm of the step; infinity where there is none."""
    below = curves <= TARGET.value
    step = np.where(below.any(axis=0), below.argmax(axis=0), 1)
    at = np.arange(curves.shape[1])
    share = (curves[step - 1, at] - TARGET.value) / (curves[step - 1, at] - curves[step, at])
    return np.where(below.any(axis=0), np.maximum(step - 1, 1) * (step / np.maximum(step - 1, 1)) ** share, np.inf)


def taken(case: Case, table: Table, trials: int) -> tuple[float, float]:
    """Steps and examples to the target, geometric means over trials, which start alike under every table."""
    steps = crossings(losses(case, table, trials, np.random.default_rng(9), 5000)[..., 0])
    sizes, seen, examples = [size for _, size, _ in table], 0.0, np.zeros(len(steps))
    left = steps.copy()
    for size, end in zip(sizes, [*(start for start, _, _ in table[1:]), np.inf], strict=True):
        count = np.minimum(left, math.ceil((end - seen) / size) if np.isfinite(end) else np.inf)
        examples, left, seen = examples + count * size, left - count, seen + float(count.max()) * size
    return math.exp(np.log(steps).mean()), math.exp(np.log(examples).mean())


@functools.cache
def constants(name: str, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch sizes of a case and the steps of each at its best learning rate."""
    case = CASES[name]
    sizes = np.unique(np.round(np.geomspace(case.batch_sizes[0], case.batch_sizes[-1], 16))).astype(int)
    steps = [taken(case, [(0, int(size), best_lr(case.name, int(size))[1])], trials)[0] for size in sizes]
    return sizes, np.array(steps)


def sweep(folder: Path, case: Case, index: int) -> Path:
    """As ``cbs sweep`` would have left it."""
    store = Store(folder)
    store.prepare()
    store.write_manifest({"name": "quadratic", "recipe": "quadratic", "protocol": {"prune_factor": None}})
    for size in case.batch_sizes:
        steps, best = best_lr(case.name, size)
        middle = math.floor(math.log(best, RATIO) + np.random.default_rng(index).uniform())
        lrs = [RATIO ** (middle + power) for power in AROUND]
        curves = losses(case, [(0, size, lrs)], SEEDS, np.random.default_rng([index, size]), int(2.5 * steps) + 20)
        for seed, place in np.ndindex(SEEDS, len(lrs)):
            store.save(_trial(case, size, lrs[place], seed, curves[:, seed, place]))
    return folder


def _trial(case: Case, size: int, lr: float, seed: int, curve: np.ndarray) -> TrialResult:
    rows, step, status = [], 0, TrialStatus.BUDGET_EXHAUSTED
    while step < len(curve) and np.isfinite(curve[step]):
        value = float(curve[step])
        rows.append(Measurement(step=step, examples=step * size, value=value, train_loss=value, lr=lr if step else 0.0))
        if value <= TARGET.value:
            status = TrialStatus.REACHED
            break
        step = PLAN.next_step(step, near=value - TARGET.value <= PLAN.near_fraction * (curve[0] - TARGET.value))
    config = TrialConfig(
        workload=case.workload, optimizer=case.optimizer, lr=lr, batch_size=size, seed=seed, target=TARGET,
        max_steps=len(curve), schedule=Schedule(), evaluation=PLAN, probe=None,
    )  # fmt: skip
    steps = np.arange(1, rows[-1].step + 1)
    return TrialResult(
        config=config, status=status, evaluations=rows, workload=INFO,
        steps_to_target=TARGET.crossing([row.step for row in rows], [row.value for row in rows]),
        steps={"step": steps, "examples": steps * size, "train_loss": np.ones(len(steps))},
    )  # fmt: skip


INFO = WorkloadInfo(parameters=1000, example_unit="sample", tokens_per_example=None, metric_unit="loss", data_hash=None)


def held(promised: Quantity, value: float) -> bool | None:
    """Whether the interval holds it; ``None`` where none was promised."""
    low, high = promised.interval
    return None if low is None or high is None else low <= value <= high


def compared(case: Case, outcome: Outcome, starts: Sequence[int], trials: int) -> list[float]:
    """Steps, examples and examples saved of a plan that is run."""
    table = [
        (float(at), size, float(lr or 0.0))
        for at, size, lr in zip(starts, outcome.batch_sizes, outcome.lrs, strict=True)
    ]
    steps, examples = taken(case, table, trials)
    sizes, whole = constants(case.name, trials)
    same = math.exp(np.interp(-math.log(steps), -np.log(whole), np.log(sizes)))
    return [steps, examples, 1.0 - examples / (same * steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--case", choices=list(CASES), default="momentum")
    parser.add_argument("--shown", type=int, default=3)
    asked = parser.parse_args()
    case, counts = CASES[asked.case], defaultdict(list)
    for index in range(asked.sweeps):
        with tempfile.TemporaryDirectory() as folder:
            (source,) = of_sweep(sweep(Path(folder), case, index), AnalysisConfig(seed=index), None, None)
        (plan,) = plan_schedule([source], Ask(), AnalysisConfig(seed=index)).plans
        if len(plan.outcomes[0].batch_sizes) == 1:
            continue
        for outcome in plan.outcomes[:-1]:
            truth = compared(case, outcome, [start for start, _ in plan.table], asked.trials)
            promises = (outcome.steps, outcome.examples, outcome.examples_saved)
            counts[outcome.name].append([held(each, value) for each, value in zip(promises, truth, strict=True)])
            if index < asked.shown:
                told = "; ".join(f"{p.value} {p.interval}: {v:.4g}" for p, v in zip(promises, truth, strict=True))
                print(f"{index} {plan.table} {outcome.name} {outcome.lrs}: {told}", flush=True)
    print("| rule | plans | steps held | examples held | saving held | saving promised |\n" + "|---" * 6 + "|")
    for name, rows in counts.items():
        shares = [np.mean([row[place] for row in rows if row[place] is not None]) for place in range(3)]
        cells = [
            name,
            str(len(rows)),
            *(f"{share:.0%}" for share in shares),
            str(sum(row[2] is not None for row in rows)),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
