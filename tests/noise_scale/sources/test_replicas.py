"""Ranks under gloo, against one process that takes the gradient of every group by itself.

Networks are in float64 and the two sides differ in the order of sums over at most 28 examples and 16800 entries, so
they agree to about 1e-13; 1e-9 leaves room and is far below any difference that matters.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.l2 import L2
from cbs.noise_scale.sources import SOURCES
from tests.noise_scale.distributed_worker import SIZES, loss, network

EXACT = {"rtol": 1e-9, "atol": 1e-15}
EVEN = (4, 4, 4, 4)
DDP = {
    "ddp": (1, EVEN),
    "ddp, two micro-batches": (2, EVEN),
    "ddp, two micro-batches, synchronised twice": (2, EVEN),
    "ddp, bucket views": (2, EVEN),
    "ddp, unequal ranks": (2, SIZES),
    "ddp, accumulation": (1, EVEN),
    "ddp, accumulation, two micro-batches": (2, EVEN),
    "ddp, communication hook": (1, EVEN),
}
FSDP = {"fsdp": 1, "fsdp, two micro-batches": 2, "fsdp, kept after forward": 2, "fsdp, hybrid": 2}

pytestmark = pytest.mark.parametrize("world", [2, 4])


def group_gradients(
    world: int, micros: int, sizes: tuple[int, ...], *, model: nn.Module | None = None, branches: set[int] | None = None
) -> list[list[Tensor]]:
    """Mean gradient of every micro-batch of every rank, one after the other, per trainable parameter tensor."""
    model = model or network()
    model.branch.requires_grad_(branches is not None)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = []
    for rank in range(world):
        for micro in range(micros):
            value = loss(model, rank, micro, 1, sizes[rank], branch=rank in (branches or ()))
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            gradients.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)])
    return gradients


def check(
    found: dict[str, Any], gradients: list[list[Tensor]], micros: int, sizes: list[int], **tolerance: float
) -> None:
    """Both sides of the equations against the gradients of the groups."""
    tolerance = tolerance or EXACT
    small = found["small"]
    effective = len(sizes) ** 2 / sum(1 / (micros * size) for size in sizes)
    assert small["groups"] == micros * len(sizes)
    assert small["inverse_sizes"] == pytest.approx(micros * sum(1 / size for size in sizes), rel=1e-12)
    assert small["examples"] == pytest.approx(effective, rel=1e-12)
    squares = [torch.stack([gradient[i] for gradient in gradients]).square() for i in range(len(gradients[0]))]
    means = [torch.stack([gradient[i] for gradient in gradients]).mean(0) for i in range(len(gradients[0]))]
    factor = small["examples"] ** 2 / small["groups"]
    norms = [entry * factor for entry in small["statistics"][0]]
    torch.testing.assert_close(norms, [s.sum() / len(gradients) for s in squares], check_dtype=False, **tolerance)
    torch.testing.assert_close(found["big"][0], [m.square().sum() for m in means], check_dtype=False, **tolerance)
    torch.testing.assert_close(found["gradients"], means, check_dtype=False, **tolerance)
    for entry, square in zip(small["statistics"][1] if len(small["statistics"]) > 1 else [], squares, strict=False):
        torch.testing.assert_close(entry * factor, square.mean(0), **tolerance)


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


def test_mixed_precision_of_fsdp2(ranks: dict[int, list[dict]], world: int) -> None:
    """bfloat16 keeps 8 bits: activations and gradients are off by some units of 2**-8, squares by twice that."""
    gradients = group_gradients(world, 2, EVEN, branches=set(range(world)))
    for rank in range(world):
        found = ranks[world][rank]["fsdp, bfloat16"]
        check({**found, "gradients": _means(gradients)}, gradients, 2, [4] * world, rtol=0.08, atol=1e-6)


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


def test_probe_measures_every_step_of_ddp(ranks: dict[int, list[dict]], world: int) -> None:
    for rank in range(world):
        for step in ranks[world][rank]["probe"]:
            model = network()
            model.load_state_dict(step["weights"])
            gradients = group_gradients(world, 1, EVEN, model=model)
            moments = step["moments"]
            assert (moments.sizes.small, moments.sizes.big, moments.sizes.groups) == (4, 4 * world, world)
            flat = torch.stack([torch.cat([g.flatten() for g in gradient]) for gradient in gradients])
            noise = 4 * flat.var(0).sum()
            torch.testing.assert_close(moments.noise.sum(), noise, **EXACT)
            torch.testing.assert_close(moments.signal.sum(), flat.mean(0).square().sum() - noise / (4 * world), **EXACT)


def test_nothing_is_left_on_the_model(ranks: dict[int, list[dict]], world: int) -> None:
    for rank in range(world):
        for found in ranks[world][rank]["detached"].values():
            before, during, after = found["hooks"]
            assert before == after < during
            assert found["seen"] is None


def test_refusals_say_what_works(ranks: dict[int, list[dict]], world: int) -> None:
    for rank in range(world):
        said = ranks[world][rank]["refusals"]
        assert "geometry 'l2'" in said["geometry"]
        assert "fully_shard" in said["fsdp1"]
        assert "reshard()" in said["whole"]
        assert all("\n" not in message for message in said.values())


def test_one_process_is_told_to_start_several(world: int) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="torchrun"):
        SOURCES["replicas"](model, list(model.parameters()), [L2()])


def _means(gradients: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack([gradient[i] for gradient in gradients]).mean(0) for i in range(len(gradients[0]))]
