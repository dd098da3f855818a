"""What ranks do for the tests of data-parallel noise scales: ``python distributed_worker.py FOLDER RANKS CASE...``.

There are that many forked processes and one process group; every rank runs the cases, all where none is named, and
writes ``FOLDER/RANK.pt``.
"""

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP imports it: once, before the ranks are forked
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from cbs.errors import ConfigError
from cbs.noise_scale.distributed import combine, data_parallel_groups, sum_over_ranks, whole_statistics
from cbs.noise_scale.geometries import GEOMETRIES
from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.meter import NoiseScaleMeter
from cbs.noise_scale.moments import Sizes, solve_moments
from cbs.noise_scale.probe import Probe
from cbs.noise_scale.sources import SOURCES, Small
from tests.noise_scale.one_process import SIZES, STEPS, SmallNetwork, Squares, batch, loss, network, small_network
from tests.ranks import fork

TINY_BUCKET = 1e-4  # Megabytes: every parameter tensor of the network gets its own bucket
WEIGHTS = (None, "ranks", "examples")  # What may be said of ranks that differ


def backward(
    model: nn.Module, micros: int, size: int, *, synchronize: bool = False, branch: bool = False, first: int = 0
) -> None:
    """The backward passes of a step, synchronised in the last one alone unless told otherwise."""
    rank = dist.get_rank()
    for micro in range(micros):
        with contextlib.nullcontext() if synchronize or micro == micros - 1 else _no_sync(model):
            loss(model, rank, first + micro, micros, size, branch).backward()


def shard_small(model: SmallNetwork) -> nn.Module:
    fully_shard(model.first)
    return fully_shard(model)


def shard(**options: Any) -> nn.Module:
    model = network()
    fully_shard([model.large, model.narrow], **options)
    fully_shard(model.head, **options)
    return fully_shard(model, **options)


def watch(model: nn.Module, source: str, run: Callable[[], None], geometries: Sequence[Any] = (L2(),)) -> dict:
    """What a source says of a step, next to the gradients the step leaves behind."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    watcher = SOURCES[source](model, parameters, geometries)
    watcher.attach()
    run()
    small = combine(watcher.collect(), watcher.ranks or data_parallel_groups(model), "ranks")
    gradients = {i: torch.zeros_like(p) if p.grad is None else p.grad for i, p in enumerate(parameters)}
    result = {
        "small": {"statistics": small.statistics, **vars(small.sizes)},
        "big": [whole_statistics(geometry, gradients) for geometry in geometries],
        "gradients": [_whole(gradient) for gradient in gradients.values()],
        "again": watcher.collect(),
    }
    watcher.detach()
    return result


def gradients_of(model: nn.Module, run: Callable[[], None]) -> list[Tensor]:
    """The gradients of the same step with nobody watching."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    run()
    return [_whole(torch.zeros_like(p) if p.grad is None else p.grad) for p in parameters]


def ddp(
    micros: int, source: str, *, sizes: Sequence[int] = (4,) * 4, synchronize: bool = False, **options: Any
) -> dict:
    unused = options.get("find_unused_parameters", False)
    size, branch = sizes[dist.get_rank()], unused and dist.get_rank() == 0
    initial = network()
    if not unused:
        initial.branch.requires_grad_(False)

    def step(model: nn.Module) -> Callable[[], None]:
        return lambda: backward(model, micros, size, synchronize=synchronize, branch=branch)

    plain = DistributedDataParallel(copy.deepcopy(initial), bucket_cap_mb=TINY_BUCKET, **options)
    watched = DistributedDataParallel(copy.deepcopy(initial), bucket_cap_mb=TINY_BUCKET, **options)
    result = watch(watched, source, step(watched), (L2(), Squares()))
    return {**result, "plain": gradients_of(plain, step(plain))}


def fsdp(micros: int, **options: Any) -> dict:
    """An evaluation comes first, as it leaves some parameters whole."""
    plain, watched = shard(**options), shard(**options)

    def step(model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                model(batch(0, 0, 2)[0])
            backward(model, micros, 4, branch=True)

        return run

    return {**watch(watched, "replicas", step(watched)), "plain": gradients_of(plain, step(plain))}


def hybrid() -> dict:
    world = dist.get_world_size()
    return fsdp(2, mesh=init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard")))


def with_communication_hook() -> dict:
    model = network()
    model.branch.requires_grad_(False)
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, allreduce_hook)
    return watch(model, "replicas", lambda: backward(model, 1, 4), (L2(), Squares()))


def transposed() -> dict:
    """A weight whose memory runs the other way, in a geometry that looks at single entries."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        plain = nn.Linear(6, 3).double()
        plain.weight = nn.Parameter(plain.weight.detach().t().contiguous().t())
        return plain

    def step() -> None:
        inputs, targets = batch(dist.get_rank(), 0, 4)
        (watched(inputs) - targets).square().mean().backward()

    watched = DistributedDataParallel(model())
    return {**watch(watched, "replicas", step, (L2(), Squares())), "model": model()}


def some_ranks() -> dict | None:
    """The first three ranks in a process group of their own."""
    members = list(range(min(3, dist.get_world_size())))
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return None
    found = ddp(2, "replicas", process_group=group)
    dist.destroy_process_group(group)
    return found


def training(source: str, micros: int, wrap: Callable[[nn.Module], nn.Module]) -> dict:
    """A training loop with the drop-in: what it says at the end, and where the weights went."""
    model = wrap(small_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with NoiseScaleMeter(model, optimizer, source=source) as noise_scale:
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model, micros, 4, first=step * micros)
            noise_scale.step()
            optimizer.step()
    return {
        "estimate": noise_scale.estimate(),
        "parts": list(noise_scale.estimate("parameter").values()),
        "source": noise_scale.probe.source,
        "weights": [_whole(parameter) for parameter in model.parameters()],
    }


def steps_of_a_probe() -> list[dict]:
    """Three steps with an optimizer in between, as a training loop makes them."""
    model = network()
    model.branch.requires_grad_(False)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    with Probe(model, source="replicas") as probe:
        for _ in range(STEPS):
            optimizer.zero_grad()
            backward(model, 1, 4)
            weights = copy.deepcopy(model.module.state_dict())
            steps.append({"moments": probe.step()["l2"], "weights": weights})
            optimizer.step()
    return steps


def detached() -> dict[str, dict]:
    """A source that was attached for one step, under DDP and FSDP2."""
    result = {}
    for name, model in ("ddp", DistributedDataParallel(network(), find_unused_parameters=True)), ("fsdp", shard()):
        before = _module_hooks(model)
        watcher = SOURCES["replicas"](model, [p for p in model.parameters() if p.requires_grad], (L2(),))
        watcher.attach()
        backward(model, 1, 4, branch=True)
        during = _module_hooks(model)
        watcher.detach()
        watcher.collect()
        backward(model, 1, 4, branch=True)
        result[name] = {"hooks": [before, during, _module_hooks(model)], "seen": watcher.collect()}
    return result


def unequal_ranks() -> dict:
    """Both moments over many steps of a gradient whose mean and covariance are known, ranks of unequal size."""
    rank, world, steps = dist.get_rank(), dist.get_world_size(), 2000
    generator = torch.Generator().manual_seed(rank)
    own = 0.5 + torch.randn(steps, SIZES[rank], 20, dtype=torch.float64, generator=generator).mean(1)
    squared = own.square().sum(1)
    groups = [dist.group.WORLD]
    small = combine(
        Small(statistics=[[squared]], sizes=Sizes(small=SIZES[rank], big=SIZES[rank], groups=1)), groups, "ranks"
    )
    big = (sum_over_ranks([own], groups)[0] / world).square().sum(1)
    return {"moments": solve_moments(small.statistics[0][0], small.sizes.small, big, small.sizes.big)}


def weighted(kind: str, synchronize: bool, weights: str | None) -> tuple[float, float] | str:
    """Signal and noise of a step of two micro-batches of unequal ranks, or what is said instead."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = shard_small(small_network()) if kind == "fsdp" else DistributedDataParallel(small_network())
    probe = Probe(model, source="replicas", weights=weights)
    share = world * SIZES[rank] / sum(SIZES[:world]) if weights == "examples" else 1.0
    for micro in range(2):
        with contextlib.nullcontext() if synchronize or micro else _no_sync(model):
            (loss(model, rank, micro, 2, SIZES[rank]) * share).backward()
    try:
        moments = probe.step()["l2"]
    except ConfigError as error:
        return str(error)
    return float(moments.signal.sum()), float(moments.noise.sum())


def sums() -> dict:
    rank, world = dist.get_rank(), [dist.group.WORLD]
    tensors = [
        torch.full((2, 3), float(rank)),
        torch.full((20_000,), 1.0 + rank),
        torch.tensor(2.0, dtype=torch.float64),
    ]
    return {"tensors": sum_over_ranks(tensors, world), "large only": sum_over_ranks([torch.ones(20_000)], world)}


def refusals() -> dict[str, str]:
    """What a person is told."""
    evaluated = shard()
    with torch.no_grad():
        evaluated(batch(0, 0, 2)[0])
    inside = network()
    wrapper = DistributedDataParallel(inside)
    hidden = Probe(inside, source="split")

    def averaged_unseen() -> None:
        wrapper(batch(dist.get_rank(), 0, 2)[0], branch=True).square().mean().backward()
        hidden.step()

    cases = {
        "hidden wrapper": averaged_unseen,
        "geometry": lambda: watch(shard(), "replicas", int, (Squares(),)),
        "fsdp1": lambda: watch(_fsdp1(), "replicas", int),
        "tensor parallel": lambda: Probe(_by_columns()),
        "whole": lambda: watch(evaluated, "replicas", int),
        "big": lambda: whole_statistics(Squares(), dict(enumerate(shard().parameters()))),
    }
    said = {}
    for name, case in cases.items():
        try:
            case()
        except ConfigError as error:
            said[name] = str(error)
    hidden.detach()
    return said


def changed() -> dict[str, str]:
    """What is said where gradients were changed; of one rank's alone it is said after the first step."""
    changes: dict[str, Callable[[nn.Module], object]] = {
        "scaled": lambda model: [_local(parameter.grad).mul_(0.99) for parameter in model.parameters()],
        "clipped": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01),
        "nothing": lambda model: None,
    }
    said = {}
    for (kind, wrap), (name, change) in product(
        {"ddp": DistributedDataParallel, "fsdp": shard_small}.items(), changes.items()
    ):
        model = wrap(small_network())
        with Probe(model, source="replicas") as probe:
            for step in range(2):
                backward(model, 2, 4, first=2 * step)
                try:
                    change(model)
                    probe.step()
                except ConfigError as error:
                    said[f"{kind}, {name}"] = str(error)
                if name != "nothing":
                    model.zero_grad()
    model = DistributedDataParallel(small_network())
    with Probe(model) as probe, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(3):
            backward(model, 1, 4)
            if step == 1 and dist.get_rank() == 0:
                changes["scaled"](model)
            probe.step()
            model.zero_grad()
        said["one rank"] = probe.caveat
    return said


CASES: dict[str, Callable[[], Any]] = {
    "ddp": lambda: ddp(1, "replicas"),
    "ddp, two micro-batches": lambda: ddp(2, "replicas"),
    "ddp, two micro-batches, synchronised twice": lambda: ddp(2, "replicas", synchronize=True),
    "ddp, bucket views": lambda: ddp(2, "replicas", gradient_as_bucket_view=True),
    "ddp, unequal ranks": lambda: ddp(2, "replicas", sizes=SIZES),
    "ddp, unused parameters": lambda: ddp(1, "replicas", find_unused_parameters=True),
    "ddp, accumulation": lambda: ddp(1, "accumulation"),
    "ddp, accumulation, two micro-batches": lambda: ddp(2, "accumulation"),
    "ddp, communication hook": with_communication_hook,
    "ddp, static graph": lambda: ddp(1, "replicas", static_graph=True),
    "ddp, transposed": transposed,
    "ddp, some ranks": some_ranks,
    "probe": steps_of_a_probe,
    **{
        f"training, {source}, {micros}": partial(training, source, micros, DistributedDataParallel)
        for source in ("replicas", "accumulation", "split")
        for micros in (1, 2)
    },
    **{f"training, fsdp, {source}": partial(training, source, 2, shard_small) for source in ("auto", "replicas")},
    "fsdp": lambda: fsdp(1),
    "fsdp, two micro-batches": lambda: fsdp(2),
    "fsdp, kept after forward": lambda: fsdp(2, reshard_after_forward=False),
    "fsdp, bfloat16": lambda: fsdp(
        2, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ),
    "fsdp, hybrid": hybrid,
    "detached": detached,
    "unequal ranks": unequal_ranks,
    "weighted": lambda: {key: weighted(*key) for key in product(("ddp", "fsdp"), (True, False), WEIGHTS)},
    "sums": sums,
    "refusals": refusals,
    "changed": changed,
}


@contextlib.contextmanager
def _no_sync(model: nn.Module) -> Iterator[None]:
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
        return
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def _fsdp1() -> nn.Module:
    return FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)


def _by_columns() -> nn.Module:
    world = dist.get_world_size()
    layer = nn.Linear(4, 2 * world)
    return parallelize_module(layer, init_device_mesh("cpu", (world,)), ColwiseParallel())


def _whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _module_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def main(folder: Path, world: int, names: Sequence[str]) -> None:
    for registry in (SOURCES, GEOMETRIES):  # imported once, before the ranks are forked
        registry.names()
    fork(world, folder, lambda: {name: CASES[name]() for name in names})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or [*CASES])
