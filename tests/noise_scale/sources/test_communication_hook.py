"""DDP's buckets under gloo, against one process that takes the gradient of every rank by itself."""

from __future__ import annotations

import pytest
import torch

from tests.noise_scale.distributed_worker import SIZES, batch
from tests.noise_scale.one_process import EVEN, EXACT, check, group_gradients, groups_of_ranks

CASES = {
    "hook": (1, EVEN),
    "hook, two micro-batches": (2, EVEN),
    "hook, bucket views": (2, EVEN),
    "hook, static graph": (1, EVEN),
    "hook, unequal ranks": (2, SIZES),
    "hook, unused parameters": (1, EVEN),
}

pytestmark = pytest.mark.parametrize("world", [2, 4])


@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_a_group(ranks: dict[int, list[dict]], world: int, case: str) -> None:
    micros, sizes = CASES[case]
    branches = {0} if case == "hook, unused parameters" else None
    gradients = groups_of_ranks(group_gradients(world, micros, sizes, branches=branches), micros)
    for rank in range(world):
        check(ranks[world][rank][case], gradients, 1, [micros * size for size in sizes[:world]])


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_ddp_without_a_hook(ranks: dict[int, list[dict]], world: int, case: str) -> None:
    for rank in range(world):
        found = ranks[world][rank][case]
        torch.testing.assert_close(found["gradients"], found["plain"], rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_find_the_same_and_a_step_is_forgotten(ranks: dict[int, list[dict]], world: int, case: str) -> None:
    for rank in range(world):
        found = ranks[world][rank][case]
        torch.testing.assert_close(found["small"], ranks[world][0][case]["small"], rtol=0, atol=0)
        assert found["again"] is None


def test_entries_of_a_weight_in_another_memory_order_stay_in_place(ranks: dict[int, list[dict]], world: int) -> None:
    found = ranks[world][0]["hook, transposed"]
    model = found["model"]
    assert not model.weight.is_contiguous()
    gradients = []
    for rank in range(world):
        inputs, targets = batch(rank, 0, 4)
        gradients.append(list(torch.autograd.grad((model(inputs) - targets).square().mean(), model.parameters())))
    check(found, gradients, 1, [4] * world)


@pytest.mark.parametrize("source", ["communication_hook", "replicas"])
def test_a_process_group_of_some_ranks(ranks: dict[int, list[dict]], world: int, source: str) -> None:
    """Three is no power of two, so that dividing by it and multiplying by its inverse are not the same."""
    members, micros = min(3, world), 2
    gradients = group_gradients(members, micros, EVEN)
    sizes = [4] * members
    if source == "communication_hook":
        gradients, sizes, micros = groups_of_ranks(gradients, micros), [8] * members, 1
    for rank in range(members):
        found = ranks[world][rank]["some ranks"][source]
        check(found, gradients, micros, sizes)
        torch.testing.assert_close(found["gradients"], found["plain"], rtol=0, atol=0)
    assert all(ranks[world][rank]["some ranks"] is None for rank in range(members, world))


def test_a_detached_hook_only_averages_and_the_next_source_uses_it_again(
    ranks: dict[int, list[dict]], world: int
) -> None:
    norms = [
        sum(part.square().sum() for part in g) for g in group_gradients(world, 1, EVEN, branches=set(range(world)))
    ]
    for rank in range(world):
        found = ranks[world][rank]["hook, attached again"]
        watching = [[small is not None for small in pair] for pair in found["seen"]]
        assert watching == [[True, False], [False, False], [True, True], [False, True]]
        for small in (small for pair in found["seen"] for small in pair if small is not None):
            total = sum(small["statistics"][0])
            torch.testing.assert_close(total, sum(norms) / world, **EXACT)
        assert found["equal"] == [True] * 4


def test_nothing_else_is_left_on_the_model(ranks: dict[int, list[dict]], world: int) -> None:
    for rank in range(world):
        found = ranks[world][rank]["hook, attached again"]
        plain, after, tensor_hooks = found["hooks"]
        assert plain == after
        assert tensor_hooks == 0
        assert found["copied"] == "DistributedDataParallel"
        assert found["saved"]


def test_refusals_name_a_source_that_works(ranks: dict[int, list[dict]], world: int) -> None:
    for rank in range(world):
        said = ranks[world][rank]["refusals"]
        assert "(allreduce_hook)" in said["hook"]
        assert "FP16_COMPRESS" in said["built-in hook"]
        assert "no_sync()" in said["synchronised twice"]
        assert "'split'" in said["one rank"]
        for case in ("hook", "built-in hook", "no ddp", "synchronised twice"):
            assert "'replicas'" in said[case]
            assert "\n" not in said[case]
