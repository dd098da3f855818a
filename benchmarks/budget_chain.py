"""Trained sweeps at an equal budget whose truth is known: the whole of ``cbs sweep --budget`` and ``cbs budget``.

Plain gradient descent on the noisy quadratic, whose expected loss after so many examples is known in closed form
(:mod:`benchmarks.budget_truth`). Every sweep has seeds of its own, searches its learning rates, trains, is stored and
read again. ``python -m benchmarks.budget_chain --output FILE`` prints what docs/evidence.md has of it; the file has one
line of JSON for every sweep, and the same command goes on where an earlier one stopped.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analysis.config import AnalysisConfig
from analysis.formatting import number
from benchmarks.budget_truth import Setting, World, judgement
from benchmarks.calibration.replicates import SharedStream, seeds_of, train
from benchmarks.telling import head, holds, line
from cbs.trial.config import Choice
from cbs.trial.store import Store
from cbs.workloads.noisy_quadratic import NoisyQuadraticWorkload
from extensions.budget.equal_budgets import budget
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.launch import resolve
from sweeps.spec.axes import Axes
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import SearchPlan, Sweep, prototype
from sweeps.spec.workload import built

DIMENSION = 200
BUDGET = 4096
SIZES = tuple(2**power for power in range(3, 8))
WITHIN = 0.3
"""Margin over the least loss, about the noise of one run."""


@functools.cache
def truth() -> tuple[np.ndarray, float]:
    """Least expected losses of the batch sizes, and the largest batch size within the margin of the best of them."""
    world = World(Setting(name="trained", seeds=3, noise=0.0, power=0.0, budget=BUDGET))
    least = np.array([world.best(size)[0] for size in SIZES])
    fine = np.geomspace(SIZES[0], SIZES[-1], 400)
    past = np.array([world.best(size)[0] for size in fine]) > (1 + WITHIN) * least.min()
    above = np.flatnonzero(past & (fine > SIZES[int(least.argmin())]))
    return least, float(fine[above[0]]) if len(above) else np.inf


def trained(index: int, folder: Path) -> None:
    """Search, train and store one sweep, with seeds that no other has."""
    sweep = resolve(
        Sweep(
            name="equal budget",
            trial=prototype(
                workload=Choice(name="noisy_quadratic", options={"dimension": DIMENSION}), probe=None, device="cpu"
            ),
            axes=Axes(
                optimizers=(Choice(name="sgd", options={"momentum": 0.0}),),
                batch_sizes=SIZES,
                seeds=seeds_of(index),
                budgets=(BUDGET,),
            ),
            search=SearchPlan(within=WITHIN * float(truth()[0].min())),
            schedule=ScheduleRule(warmup_steps=0),
        )
    )
    workload, store = built(sweep.trial.workload), Store(folder)
    assert isinstance(workload, NoisyQuadraticWorkload)
    store.prepare()
    store.write_manifest(merged_manifest(store, sweep, "python -m benchmarks.budget_chain"))
    train(sweep, store, SharedStream(workload))


def judged(folder: Path, index: int) -> dict[str, Any]:
    """What ``cbs budget`` says of the folder, against the truth."""
    least, largest = truth()
    found = budget(folder, config=AnalysisConfig(seed=index), within=f"{100 * WITHIN:g}%").budgets[0].optimizers[0]
    excess, margin = least - least.min(), WITHIN * least.min()
    right = judgement(found.equivalence, SIZES[int(least.argmin())], largest, excess, margin)
    wrong = right.pop("wrong")
    losses = [holds(size.metric.interval, each) for size, each in zip(found.sizes, least, strict=True)]
    return {
        "loss": float(np.mean(losses)),
        **right,
        "ok": found.verdict == "ok",
        "silent": wrong and found.verdict == "ok",
    }


COLUMNS = ("loss", "best", "largest", "equal wrongly", "worse wrongly", "ok", "silent")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=40)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = [json.loads(line) for line in given.output.read_text().splitlines()] if given.output.exists() else []
    for index in range(len(known), given.sweeps):
        print(f"\r{index} of {given.sweeps} sweeps", end="", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            trained(index, Path(folder) / "sweep")
            known.append(judged(Path(folder) / "sweep", index))
        with given.output.open("a") as file:
            file.write(json.dumps(known[-1]) + "\n")
    shares = [f"{number(100 * float(np.mean([row[name] for row in known])))} %" for name in COLUMNS]
    print(f"{head(COLUMNS)}\n{line(shares)}")


if __name__ == "__main__":
    main()
