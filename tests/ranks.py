"""Ranks of data-parallel training for tests: a worker program of their own, whose forked processes are one group."""

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests import fresh

SECONDS = 600
ROOT = Path(__file__).parents[1]
PROGRAM = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def found_by(worker: Path, folder: Path, *arguments: object) -> list[Any]:
    """Run the program ``worker FOLDER ARGUMENTS``; returns what each of its ranks has left in ``FOLDER/RANK.pt``."""
    finished = fresh.python(PROGRAM, ROOT, *map(str, (worker, folder, *arguments)))
    assert finished.returncode == 0, finished.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(len([*folder.glob("*.pt")]))]


def fork(world: int, folder: Path, find: Callable[[], Any]) -> None:
    """In a worker: what ``find`` returns in each of so many processes, which are a group under gloo; the worker ends
    here where one of them fails."""
    ranks = [get_context("fork").Process(target=_rank, args=(world, folder, find, rank)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        sys.exit(1)


def _rank(world: int, folder: Path, find: Callable[[], Any], rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS / 2),
    )
    try:
        torch.save(find(), folder / f"{rank}.pt")
    except Exception:  # noqa: BLE001 - a rank that fails ends at once, so that the others stop waiting for it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
