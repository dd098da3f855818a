"""Trials sharded over two ranks and not, run as ``python -m tests.training.ranks_worker FOLDER OPTIMIZER...``.

What became of them is JSON on standard output of the first."""

import contextlib
import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from cbs.optimizers import OPTIMIZERS
from cbs.training.ranks import ALONE, Ranks, joined
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.target import Target
from cbs.workloads import build_workload

TEXT = Choice(name="text", options={"validation_sequences": 16})


def trial(optimizer: str, **changes: Any) -> TrialConfig:
    grid = OPTIMIZERS[optimizer].lr_grid
    config = TrialConfig(
        workload=TEXT,
        optimizer=Choice(name=optimizer),
        lr=grid[len(grid) // 2],
        batch_size=8,
        seed=3,
        target=Target(metric="validation_loss", value=1.0),
        max_steps=8,
        micro_batch_size=2,
        clip_norm=0.5,
        probe=Choice(name="auto", options={"every": 1, "geometry": "l2"}),
    )
    return dataclasses.replace(config, **changes)


class Killed(Exception):
    """Stands for the death of the processes."""


def run(
    config: TrialConfig, ranks: Ranks = ALONE, path: Path | None = None, killed: int | None = None
) -> dict[str, list[float]]:
    """Values of the evaluations and moments of the steps; on from a checkpoint at ``path``, dead at step ``killed``."""

    def alive(step: int) -> None:
        if killed is not None and step >= killed:
            raise Killed

    checkpoint = None if path is None else Checkpoint(path, seconds=0.0)
    result = run_trial(config, workload=build_workload(TEXT), ranks=ranks, checkpoint=checkpoint, alive=alive)
    columns = {name: result.steps[name].tolist() for name in ("train_loss", "grad_sq_norm", "noise_trace", "clipped")}
    return {"value": [row.value for row in result.evaluations], **columns}


def rank_main(rank: int, folder: str, optimizers: list[str]) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with joined(rank, 2, Path(folder, "meeting").as_uri(), torch.device("cpu"), 60.0, True) as ranks:
        for name in optimizers:
            path, copy = Path(folder, f"{name}.pt"), Path(folder, f"{name}-copy.pt")
            found[name] = {"sharded": run(trial(name), ranks)}
            if name == optimizers[0]:
                found[name]["copied"] = run(trial(name), dataclasses.replace(ranks, shard=False))
            with contextlib.suppress(Killed):
                run(trial(name), ranks, path, killed=6)
            if rank == 0:
                shutil.copy(path, copy)
            found[name]["resumed"] = run(trial(name), ranks, path)
            if rank == 0:
                found[name]["resumed alone"] = run(trial(name), path=copy)
                alone = trial(name, probe=Choice(name="accumulation", options={"every": 1, "geometry": "l2"}))
                found[name]["alone"] = run(alone)
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1], sys.argv[2:]), nprocs=2)
