"""Sums over ranks and what holds without any: probe and drop-in under gloo, DDP and FSDP2, against one process."""

from pathlib import Path

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale.distributed import combine, data_parallel_groups, is_sharded, whole_statistics
from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.moments import Sizes
from cbs.noise_scale.sources import SOURCES, Small
from tests import fresh
from tests.noise_scale.one_process import (
    EVEN,
    EXACT,
    SIZES,
    STEPS,
    Squares,
    batch,
    check,
    group_gradients,
    loss,
    means,
    network,
    small_network,
    training,
)


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


@pytest.mark.parametrize(
    ("case", "source", "micros"),
    [
        *[
            (f"training, {source}, {micros}", source, micros)
            for source in ("replicas", "accumulation", "split")
            for micros in (1, 2)
        ],
        *[(f"training, fsdp, {source}", "replicas", 2) for source in ("auto", "replicas")],
    ],
)
def test_a_training_loop_on_ranks_is_one_on_the_union(ranks: list[dict], case: str, source: str, micros: int) -> None:
    """Rounding moves the weights by about 1e-16 a step, and moments are differences within a factor of ten."""
    noise_scale, model = training(len(ranks), micros, source)
    expected = noise_scale.estimate()
    assert expected.value is not None
    assert expected.examples == STEPS * len(ranks) * micros * 4
    for rank in range(len(ranks)):
        found = ranks[rank][case]
        assert found["source"] == source
        torch.testing.assert_close(found["weights"], list(model.parameters()), **EXACT)
        for one, other in zip(
            [found["estimate"], *found["parts"]], [expected, *noise_scale.estimate("parameter").values()], strict=True
        ):
            assert (one.signal, one.noise) == pytest.approx((other.signal, other.noise), rel=1e-9)
            assert (one.steps, one.examples) == (other.steps, other.examples)
        assert found["estimate"].value == pytest.approx(expected.value, rel=1e-9)
        assert found["estimate"] == ranks[0][case]["estimate"]


@pytest.mark.parametrize("synchronize", [True, False])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_of_unequal_sizes_are_told_or_have_the_weights_that_are_given(
    ranks: list[dict], kind: str, synchronize: bool
) -> None:
    world = len(ranks)
    sizes = torch.tensor([SIZES[rank] for rank in range(world) for _ in range(2)], dtype=torch.float64)
    model = small_network()
    losses = [loss(model, rank, micro, 1, SIZES[rank]) for rank in range(world) for micro in range(2)]
    slopes = [torch.autograd.grad(each, list(model.parameters())) for each in losses]
    own = torch.stack([torch.cat([part.flatten() for part in each]) for each in slopes])
    for rank in ranks:
        found = rank["weighted"]
        assert "pass weights='ranks'" in found[kind, synchronize, None]
        for weights, shares in ("ranks", torch.full_like(sizes, 1 / len(sizes))), ("examples", sizes / sizes.sum()):
            whole, mean = (shares @ own).square().sum(), shares @ own.square().sum(1)
            inverse = (shares.square() / sizes).sum()  # 1/B of the whole step
            noise = (mean - whole) / ((shares / sizes).sum() - inverse)
            expected = (float(whole - noise * inverse), float(noise))
            assert found[kind, synchronize, weights] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_that_were_changed_are_seen_on_every_rank(ranks: list[dict], kind: str) -> None:
    """A forgotten ``zero_grad`` in the second step, where nothing else was done."""
    for rank in range(len(ranks)):
        found = ranks[rank]["changed"]
        assert ".grad is 0.99 times what" in found[f"{kind}, scaled"]
        assert "it was clipped" in found[f"{kind}, clipped"]
        assert ".grad was not empty" in found[f"{kind}, nothing"]


def test_a_step_that_one_rank_cannot_measure_all_leave_out(ranks: list[dict]) -> None:
    said = [ranks[rank]["changed"]["one rank"] for rank in range(len(ranks))]
    assert ".grad is 0.99 times what" in said[0]
    assert all("1 steps left out: another rank" in line for line in said[1:])


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


def test_probe_measures_every_step(ranks: list[dict]) -> None:
    for rank in range(len(ranks)):
        assert len(ranks[rank]["probe"]) == STEPS
        for step in ranks[rank]["probe"]:
            model = network()
            model.load_state_dict(step["weights"])
            gradients = group_gradients(len(ranks), 1, EVEN, model=model)
            moments = step["moments"]
            assert (moments.sizes.small, moments.sizes.big, moments.sizes.groups) == (4, 4 * len(ranks), len(ranks))
            flat = torch.stack([torch.cat([g.flatten() for g in gradient]) for gradient in gradients])
            noise = 4 * flat.var(0).sum()
            torch.testing.assert_close(moments.noise.sum(), noise, **EXACT)
            torch.testing.assert_close(
                moments.signal.sum(), flat.mean(0).square().sum() - noise / (4 * len(ranks)), **EXACT
            )


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
