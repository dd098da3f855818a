"""Sums over ranks, and what holds without any."""

from pathlib import Path

import torch
from torch import nn

from cbs.noise_scale.distributed import combine, data_parallel_groups, is_sharded, whole_statistics
from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.moments import Sizes
from cbs.noise_scale.sources import Small
from tests import fresh
from tests.noise_scale.distributed_worker import Squares


def test_sums_keep_order_shape_and_dtype(ranks: list[dict]) -> None:
    expected = [
        torch.full((2, 3), float(sum(range(len(ranks))))),
        torch.full((20_000,), float(sum(range(1, len(ranks) + 1)))),
        torch.tensor(2.0 * len(ranks), dtype=torch.float64),
    ]
    for rank in range(len(ranks)):
        found = ranks[rank]["sums"]
        torch.testing.assert_close(found["tensors"], expected, rtol=0, atol=0)
        torch.testing.assert_close(found["large only"], [torch.full((20_000,), float(len(ranks)))], rtol=0, atol=0)


def test_moments_are_unbiased_where_ranks_have_unequal_batches(ranks: list[dict]) -> None:
    """2000 steps of 20 gradient entries with mean 1/2 and variance 1: |G|^2 = 5 and tr(Sigma) = 20.

    Taking the sum of the batch sizes for the step's would put the signal off by more than ten standard errors with
    four ranks.
    """
    signal, noise = ranks[0]["unequal ranks"]["moments"]
    for values, truth in (signal, 5.0), (noise, 20.0):
        error = values.std() / len(values) ** 0.5
        assert abs(values.mean() - truth) < 4 * error
        assert error < 0.05 * truth


def test_a_big_side_that_is_sharded_needs_a_geometry_of_norms(ranks: list[dict]) -> None:
    assert "geometry 'l2'" in ranks[0]["refusals"]["big"]


def test_without_ranks_nothing_changes() -> None:
    model = nn.Linear(3, 2)
    small = Small(statistics=[[torch.tensor(2.0)]], sizes=Sizes(small=4.0, big=8, groups=2))
    assert data_parallel_groups(model) == []
    assert combine(small, []) is small
    assert not is_sharded(model.weight)
    gradients = {1: torch.tensor([3.0, 4.0]), 4: torch.tensor([[1.0], [2.0]])}
    assert [float(value) for value in whole_statistics(L2(), gradients)] == [25.0, 5.0]
    assert torch.equal(whole_statistics(Squares(), gradients)[1], torch.tensor([[1.0], [4.0]]))


def test_measures_where_torch_has_no_distributed_package(tmp_path: Path) -> None:
    """A build without it has ``torch.distributed.is_available() == False`` and none of the names.

    torch.compile is a matter between torch and such a build; here it is imported first.
    """
    program = """
import torch
import torch._dynamo
import torch.distributed as dist
dist.is_available = lambda: False
for name in [name for name, value in vars(dist).items() if callable(value) and name != "is_available"]:
    delattr(dist, name)
import cbs.noise_scale
model = torch.nn.Linear(2, 1)
probe = cbs.noise_scale.Probe(model, source="accumulation")
for _ in range(2):
    (model(torch.ones(3, 2)).mean() / 2).backward()
assert probe.step()["l2"].sizes.big == 6
try:
    cbs.noise_scale.Probe(model, source="replicas")
except cbs.noise_scale.sources.accumulation.ConfigError as error:
    print(error)
"""
    finished = fresh.python(program, tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "torchrun" in finished.stdout
