"""The callbacks on two ranks under DDP, against gradients taken group by group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.twin import mean_moments

pytest.importorskip("transformers")
pytest.importorskip("lightning")

WORKER = Path(__file__).with_name("distributed_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORKER.parents[2])}
    command = [sys.executable, str(WORKER), str(folder)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said = process.communicate(timeout=90)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(("library", "rounding"), [("huggingface", 1e-4), ("lightning", 1e-10)])
def test_micro_batches_of_both_ranks_are_groups(ranks: list[dict[str, Any]], library: str, rounding: float) -> None:
    if library == "huggingface":
        from tests.integrations import test_huggingface as single

        model = single.language_model()
    else:
        from tests.integrations import test_lightning as single

        model = single.regression()
    first, second = (rank[library] for rank in ranks)
    assert first["called"] == "DistributedDataParallel"
    assert first["source"] == "replicas"
    assert first["estimate"] == second["estimate"]
    steps = [(weights, own + other) for (weights, own), (_, other) in zip(first["steps"], second["steps"], strict=True)]
    signal_, noise = mean_moments(model, steps, single.loss)
    assert first["estimate"].steps == 5
    assert first["estimate"].examples == 5 * 2 * 2 * 4
    assert first["estimate"].signal == pytest.approx(signal_, rel=rounding)
    assert first["estimate"].noise == pytest.approx(noise, rel=rounding)
