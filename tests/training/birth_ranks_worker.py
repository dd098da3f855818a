"""A trunk and a branch sharded over two ranks, run as ``python -m tests.training.birth_ranks_worker FOLDER``.

``FOLDER/one/32.pt`` is kept by the same trunk on one rank; the values of the branch from there are JSON on standard
output."""

import dataclasses
import json
import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp

from cbs.training.parents import KeptCheckpoints, digest, kept_path
from cbs.training.ranks import joined
from cbs.training.run import run_trial
from cbs.trial.parent import Parent
from cbs.workloads import build_workload
from tests.training.ranks_worker import TEXT, trial

TRUNK = dataclasses.replace(trial("adamw"), stops_at_target=False)


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    path = kept_path(Path(folder, "one"), 32)
    parent = Parent(source=TRUNK.fingerprint, examples=32, digest=digest(path))
    branch = dataclasses.replace(TRUNK, max_steps=4, parent=parent)
    with joined(rank, 2, Path(folder, "meeting").as_uri(), torch.device("cpu"), 60.0, True) as ranks:
        run_trial(TRUNK, workload=build_workload(TEXT), ranks=ranks, kept=KeptCheckpoints(Path(folder, "two"), [32]))
        result = run_trial(branch, workload=build_workload(TEXT), ranks=ranks, parent=path)
    if rank == 0:
        print(json.dumps({row.step: row.value for row in result.evaluations}))


if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=2)
