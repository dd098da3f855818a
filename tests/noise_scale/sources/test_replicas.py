"""Ranks under gloo, against one process that takes the gradient of every group by itself."""

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.norms import L2
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


def check_ddp(ranks: list[dict], case: str) -> None:
    micros, sizes = DDP[case]
    gradients = group_gradients(len(ranks), micros, sizes)
    for rank in ranks:
        check(rank[case], gradients, micros, list(sizes[: len(ranks)]))


def check_fsdp(ranks: list[dict], case: str) -> None:
    gradients = group_gradients(len(ranks), FSDP[case], EVEN, branches=set(range(len(ranks))))
    for rank in ranks:
        check(rank[case], gradients, FSDP[case], [4] * len(ranks))


@pytest.mark.parametrize("case", DDP)
def test_ranks_under_ddp_are_groups(ranks: list[dict], case: str) -> None:
    check_ddp(ranks, case)


@pytest.mark.parametrize("case", FSDP)
def test_ranks_under_fsdp2_are_groups(ranks: list[dict], case: str) -> None:
    check_fsdp(ranks, case)


def test_four_ranks_of_unlike_sizes_and_four_that_are_sharded_in_pairs(four_ranks: list[dict]) -> None:
    check_ddp(four_ranks, "ddp, unequal ranks")
    check_fsdp(four_ranks, "fsdp, hybrid")


def test_a_parameter_that_some_ranks_do_not_use_has_zero_gradient_there(ranks: list[dict]) -> None:
    gradients = group_gradients(len(ranks), 1, EVEN, branches={0})
    for rank in range(len(ranks)):
        check(ranks[rank]["ddp, unused parameters"], gradients, 1, [4] * len(ranks))


def test_entries_of_a_weight_in_another_memory_order_stay_in_place(ranks: list[dict]) -> None:
    found = ranks[0]["ddp, transposed"]
    model = found["model"]
    assert not model.weight.is_contiguous()
    gradients = []
    for rank in range(len(ranks)):
        inputs, targets = batch(rank, 0, 4)
        gradients.append(list(torch.autograd.grad((model(inputs) - targets).square().mean(), model.parameters())))
    check(found, gradients, 1, [4] * len(ranks))


def test_a_process_group_of_some_ranks(four_ranks: list[dict]) -> None:
    members = 3
    gradients = group_gradients(members, 2, EVEN)
    for rank in range(members):
        found = four_ranks[rank]["ddp, some ranks"]
        check(found, gradients, 2, [4] * members)
        torch.testing.assert_close(found["gradients"], found["plain"], rtol=0, atol=0)
    assert four_ranks[3]["ddp, some ranks"] is None


def test_mixed_precision_of_fsdp2(ranks: list[dict]) -> None:
    """bfloat16 keeps 8 bits: activations and gradients are off by some units of 2**-8, squares by twice that."""
    gradients = group_gradients(len(ranks), 2, EVEN, branches=set(range(len(ranks))))
    for rank in range(len(ranks)):
        found = ranks[rank]["fsdp, bfloat16"]
        check({**found, "gradients": means(gradients)}, gradients, 2, [4] * len(ranks), rtol=0.08, atol=1e-6)


@pytest.mark.parametrize(
    "case", [case for case in [*DDP, *FSDP, "fsdp, bfloat16"] if case != "ddp, communication hook"]
)
def test_gradients_are_those_of_a_run_nobody_watches(ranks: list[dict], case: str) -> None:
    for rank in range(len(ranks)):
        found = ranks[rank][case]
        torch.testing.assert_close(found["gradients"], found["plain"], rtol=0, atol=0)


@pytest.mark.parametrize("case", [*DDP, *FSDP, "fsdp, bfloat16"])
def test_all_ranks_find_the_same_and_a_step_is_forgotten(ranks: list[dict], case: str) -> None:
    first = ranks[0][case]
    for rank in range(len(ranks)):
        found = ranks[rank][case]
        torch.testing.assert_close(found["small"], first["small"], rtol=0, atol=0)
        torch.testing.assert_close(found["big"], first["big"], rtol=0, atol=0)
        assert found["again"] is None


def test_nothing_is_left_on_the_model(ranks: list[dict]) -> None:
    for rank in range(len(ranks)):
        for found in ranks[rank]["detached"].values():
            before, during, after = found["hooks"]
            assert before == after < during
            assert found["seen"] is None


def test_refusals_say_what_works(ranks: list[dict]) -> None:
    for rank in range(len(ranks)):
        said = ranks[rank]["refusals"]
        assert "pass the wrapper to the noise scale" in said["hidden wrapper"]
        assert "geometry 'l2'" in said["geometry"]
        assert "fully_shard" in said["fsdp1"]
        assert "tensor or expert parallelism" in said["tensor parallel"]
        assert "reshard()" in said["whole"]
        assert all("\n" not in message for message in said.values())


def test_one_process_is_told_to_start_several() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="torchrun"):
        SOURCES["replicas"](model, list(model.parameters()), [L2()])
