"""Sharded models train as whole ones do, and go on on any number of workers."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from cbs.compute.sharding import SHARDABLE, check_shardable
from cbs.diagnostics import DIAGNOSTICS
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.training.loop import TrainingLoop
from cbs.training.ranks import Ranks
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from tests.training.ranks_worker import TEXT, trial

CLOSE = {"rtol": 2e-4, "atol": 1e-6}
"""Sums over ranks round in another order; eight steps of a matrix method carry that on."""


@pytest.mark.slow
@pytest.mark.parametrize("optimizers", [SHARDABLE[:7], SHARDABLE[7:]])
def test_two_ranks_train_as_one_process_does_and_each_goes_on_where_the_other_was(optimizers, tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "tests.training.ranks_worker", str(tmp_path), *optimizers],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert set(found) == set(optimizers)
    assert "copied" in found[optimizers[0]]
    for name, runs in found.items():
        assert runs["resumed"] == runs["sharded"], name
        for which in {"sharded", "resumed alone", "copied"} & runs.keys():
            for column, expected in runs["alone"].items():
                np.testing.assert_allclose(runs[which][column], expected, **CLOSE, err_msg=f"{name} {which} {column}")


def test_every_optimizer_is_known_to_shard_or_is_refused():
    assert set(SHARDABLE) <= set(OPTIMIZERS.names())
    for name in ("soap", "shampoo", "adafactor", "torch.optim:Adam"):
        with pytest.raises(ConfigError, match=f"{name}' cannot step on sharded weights"):
            check_shardable(dataclasses.replace(trial("adamw"), optimizer=Choice(name=name)))


@pytest.mark.parametrize(
    ("changes", "shard", "words"),
    [
        ({"averaging": Choice(name="ema", options={"half_life": 4})}, True, "sharded weights cannot be averaged"),
        ({"compile": True}, True, "cannot be compiled"),
        ({"batch_size": 7}, False, "batch size 7 is not a multiple of 2 workers"),
        ({"batch_size": 7, "probe": None}, True, "batch size 7 is not a multiple of 2 workers"),
        ({"batch_size": 1}, False, "a batch of 1 examples cannot be divided among 2 workers"),
        ({"diagnostics": (DIAGNOSTICS.names()[0],)}, False, "one worker's examples"),
    ],
)
def test_what_ranks_would_not_do_alike_is_refused(changes, shard, words):
    config = dataclasses.replace(trial("adamw"), **changes)
    with pytest.raises(ConfigError, match=words):
        TrainingLoop(config, build_workload(TEXT), torch.device("cpu"), Ranks(0, 2, shard))


def test_a_step_is_cut_into_all_of_its_examples():
    batch = torch.arange(7)
    parts = [Ranks(rank, 3).share(batch, 7, equal=False) for rank in range(3)]
    assert [(size, part.tolist()) for size, part in parts] == [(3, [0, 1, 2]), (2, [3, 4]), (2, [5, 6])]
    assert Ranks().share(batch, 7, equal=True)[1] is batch
    with pytest.raises(ConfigError, match="not a multiple of 3"):
        Ranks(0, 3).share(batch, 7, equal=True)


def test_weights_that_come_apart_are_noticed(monkeypatch):
    """A stand-in for the sums of two ranks, of which the other has a weight that is a bit larger."""
    model, other = torch.nn.Linear(2, 1), [0.0]

    def all_reduce(value: torch.Tensor, how: torch.distributed.ReduceOp) -> None:
        if how == torch.distributed.ReduceOp.MAX:
            value += torch.tensor([other[0], 0.0])

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    Ranks(0, 2).check_alike(model)
    Ranks(0, 1).check_alike(model)
    other[0] = 1e-7
    with pytest.raises(ConfigError, match="workers differ"):
        Ranks(0, 2).check_alike(model)
    with torch.no_grad():
        model.weight.fill_(float("nan"))  # of both, which is divergence
    other[0] = 0.0
    Ranks(0, 2).check_alike(model)
