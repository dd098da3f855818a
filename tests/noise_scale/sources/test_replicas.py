"""Ranks under gloo, against one process that takes the gradient of every group by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.l2 import L2
from cbs.noise_scale.sources import SOURCES
from tests.noise_scale.distributed_worker import SIZES, batch
from tests.noise_scale.one_process import EVEN, check, group_gradients, means

DDP = {
    "ddp": (1, EVEN),
    "ddp, two micro-batches": (2, EVEN),
    "ddp, two micro-batches, synchronised twice": (2, EVEN),
    "ddp, bucket views": (2, EVEN),
    "ddp, static graph": (1, EVEN),
    "ddp, unequal ranks": (2, SIZES),
    "ddp, accumulation": (1, EVEN),
    "ddp, accumulation, two micro-batches": (2, EVEN),
    "ddp, communication hook": (1, EVEN),
}
FSDP = {"fsdp": 1, "fsdp, two micro-batches": 2, "fsdp, kept after forward": 2, "fsdp, hybrid": 2}

pytestmark = pytest.mark.parametrize("world", [2, 4])


@pytest.mark.parametrize("case", DDP)
def test_ranks_under_ddp_are_groups(ranks: dict[int, list[dict]], world: int, case: str) -> None:
    micros, sizes = DDP[case]
    gradients = group_gradients(world, micros, sizes)
    for rank in range(world):
        check(ranks[world][rank][case], gradients, micros, list(sizes[:world]))


@pytest.mark.parametrize("case", FSDP)
def test_ranks_under_fsdp2_are_groups(ranks: dict[int, list[dict]], world: int, case: str) -> None:
    gradients = group_gradients(world, FSDP[case], EVEN, branches=set(range(world)))
    for rank in range(world):
        check(ranks[world][rank][case], gradients, FSDP[case], [4] * world)


def test_a_parameter_that_some_ranks_do_not_use_has_zero_gradient_there(
    ranks: dict[int, list[dict]], world: int
) -> None:
    gradients = group_gradients(world, 1, EVEN, branches={0})
    for rank in range(world):
        check(ranks[world][rank]["ddp, unused parameters"], gradients, 1, [4] * world)


def test_entries_of_a_weight_in_another_memory_order_stay_in_place(ranks: dict[int, list[dict]], world: int) -> None:
    found = ranks[world][0]["ddp, transposed"]
    model = found["model"]
    assert not model.weight.is_contiguous()
    gradients = []
    for rank in range(world):
        inputs, targets = batch(rank, 0, 4)
        gradients.append(list(torch.autograd.grad((model(inputs) - targets).square().mean(), model.parameters())))
    check(found, gradients, 1, [4] * world)


def test_a_process_group_of_some_ranks(ranks: dict[int, list[dict]], world: int) -> None:
    members = min(3, world)
    gradients = group_gradients(members, 2, EVEN)
    for rank in range(members):
        found = ranks[world][rank]["ddp, some ranks"]
        check(found, gradients, 2, [4] * members)
        torch.testing.assert_close(found["gradients"], found["plain"], rtol=0, atol=0)
    assert all(ranks[world][rank]["ddp, some ranks"] is None for rank in range(members, world))


def test_mixed_precision_of_fsdp2(ranks: dict[int, list[dict]], world: int) -> None:
    """bfloat16 keeps 8 bits: activations and gradients are off by some units of 2**-8, squares by twice that."""
    gradients = group_gradients(world, 2, EVEN, branches=set(range(world)))
    for rank in range(world):
        found = ranks[world][rank]["fsdp, bfloat16"]
        check({**found, "gradients": means(gradients)}, gradients, 2, [4] * world, rtol=0.08, atol=1e-6)


@pytest.mark.parametrize(
    "case", [case for case in [*DDP, *FSDP, "fsdp, bfloat16"] if case != "ddp, communication hook"]
)
def test_gradients_are_those_of_a_run_nobody_watches(ranks: dict[int, list[dict]], world: int, case: str) -> None:
    for rank in range(world):
        found = ranks[world][rank][case]
        torch.testing.assert_close(found["gradients"], found["plain"], rtol=0, atol=0)


@pytest.mark.parametrize("case", [*DDP, *FSDP, "fsdp, bfloat16"])
def test_all_ranks_find_the_same_and_a_step_is_forgotten(ranks: dict[int, list[dict]], world: int, case: str) -> None:
    first = ranks[world][0][case]
    for rank in range(world):
        found = ranks[world][rank][case]
        torch.testing.assert_close(found["small"], first["small"], rtol=0, atol=0)
        torch.testing.assert_close(found["big"], first["big"], rtol=0, atol=0)
        assert found["again"] is None


def test_nothing_is_left_on_the_model(ranks: dict[int, list[dict]], world: int) -> None:
    for rank in range(world):
        for found in ranks[world][rank]["detached"].values():
            before, during, after = found["hooks"]
            assert before == after < during
            assert found["seen"] is None


def test_refusals_say_what_works(ranks: dict[int, list[dict]], world: int) -> None:
    for rank in range(world):
        said = ranks[world][rank]["refusals"]
        assert "give the noise scale the wrapper" in said["hidden wrapper"]
        assert "geometry 'l2'" in said["geometry"]
        assert "fully_shard" in said["fsdp1"]
        assert "reshard()" in said["whole"]
        assert all("\n" not in message for message in said.values())


def test_one_process_is_told_to_start_several(world: int) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="torchrun"):
        SOURCES["replicas"](model, list(model.parameters()), [L2()])
