"""Sharded parameters (``DTensor``) under LAMB, LARS and MERIT move like whole ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.optimizers.sharded_worker import PAIRS, trained

WORKER = Path(__file__).with_name("sharded_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], list[Tensor]]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORKER.parents[2])}
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(folder)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=300)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(("case", "place"), PAIRS)
def test_shards_move_like_whole_tensors(
    case: str, place: str, ranks: list[dict[tuple[str, str], list[Tensor]]]
) -> None:
    whole = trained(case)
    for found in ranks:
        # Sums of squares over two shards are added in another order.
        torch.testing.assert_close(found[case, place], whole, rtol=1e-10, atol=1e-13)
