"""The workers of one trial: data-parallel ranks that take each step together, on the same examples as one worker would.

Every rank draws the whole batch and takes its own part of it. With :math:`B_r` of the :math:`B` examples of a step on
rank r of W, a rank's loss is :math:`W B_r / B` times its mean. DDP and FSDP2 average gradients over ranks, which then
gives the gradient of the mean loss over the step.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cbs.compute import device as devices
from cbs.compute.pass_sizes import even_sizes
from cbs.compute.sharding import check_shardable, sharded
from cbs.errors import ConfigError
from cbs.trial.config import TrialConfig
from cbs.workloads.base import Batch
from cbs.workloads.streams import split_batch


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and the operations that ranks do together; these are the identity without a process
    group.

    Attributes:
        rank: rank of this process, counted from 0. The first one validates, decides and stores.
        world: number of ranks.
        shard: whether each rank holds a part of the model and of the optimizer's state (FSDP2), or all of it (DDP).
    """

    rank: int = 0
    world: int = 1
    shard: bool = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    def check(self, config: TrialConfig) -> None:
        """Raise for a configuration that ranks would run differently from a single worker, or not at all.

        Raises:
            ConfigError: says what to change.
        """
        if self.shard:
            check_shardable(config)
        if self.world == 1:
            return
        self._check_shares(config.batch_size, config.probe is not None)
        if config.diagnostics:
            raise ConfigError(
                f"diagnostics see only one worker's examples, not those of all {self.world}: leave out diagnostics"
            )

    def share(self, batch: Batch, batch_size: int, *, equal: bool) -> tuple[int, Batch]:
        """Return how many examples of a step this rank has, and these examples.

        Args:
            batch: batch of the step.
            batch_size: number of examples in it.
            equal: whether all ranks must have equally many.

        Raises:
            ConfigError: if the batch cannot be divided this way.
        """
        if self.world == 1:
            return batch_size, batch
        self._check_shares(batch_size, equal)
        sizes = even_sizes(batch_size, self.world)
        return next(itertools.islice(split_batch(batch, sizes), self.rank, None))

    def _check_shares(self, batch_size: int, equal: bool) -> None:
        if batch_size < self.world:
            raise ConfigError(
                f"a batch of {batch_size} examples cannot be divided among {self.world} workers: use fewer workers"
            )
        # Shards are gathered in every pass, so ranks need equal numbers of passes.
        if (equal or self.shard) and batch_size % self.world:
            raise ConfigError(
                f"the noise scale and shard=true need equal shares of a step, and batch size {batch_size} is not a "
                f"multiple of {self.world} workers: change one of them, or set probe=none and leave out shard=true"
            )

    @contextmanager
    def averaging(self, trained: nn.Module, *, last: bool) -> Iterator[None]:
        """Run a forward and backward pass; in the last pass of a step, gradients are averaged over ranks."""
        if self.world == 1 or last:
            yield
            return
        from torch.distributed.fsdp import FSDPModule

        if isinstance(trained, nn.parallel.DistributedDataParallel):
            with trained.no_sync():
                yield
            return
        assert isinstance(trained, FSDPModule)
        trained.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            trained.set_requires_gradient_sync(True)

    def purpose(self, what: str) -> str:
        """Return the name of a random stream that differs between ranks, as dropout has to."""
        return what if self.first else f"{what} of rank {self.rank}"

    def placed(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model on the device before the optimizer is built; with sharding, this rank's part of it."""
        return sharded(model, device, self.world) if self.shard else model.to(device)

    def wrapped(self, model: nn.Module) -> nn.Module:
        """Return the model as it is trained, with gradients averaged over ranks."""
        if self.world == 1 or self.shard:
            return model
        # Running statistics are those of the first rank, which validates.
        return nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean over ranks of a tensor with the same shape on each; the tensor may be overwritten."""
        if self.world > 1:
            dist.all_reduce(value)
            value = value / self.world
        return value

    def agreed(self, value: float, device: torch.device) -> float:
        """Return the value of the first rank, on all ranks."""
        if self.world == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared)

    def check_alike(self, model: nn.Module) -> None:
        """Check that the weights are bitwise the same on all ranks.

        Raises:
            ConfigError: if they are not, for example because an optimizer draws random numbers.
        """
        if self.world == 1 or self.shard:
            return
        # Sums in float64 instead of weights: one number per tensor crosses the network.
        own = torch.stack([weight.detach().double().sum() for weight in model.parameters()])
        low, high = own.clone(), own
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        if not torch.equal(low.nan_to_num(), high.nan_to_num()):
            raise ConfigError(
                "the weights of a trial's workers differ: its optimizer does not take the same steps on each; use one "
                "worker per trial"
            )


ALONE = Ranks()


@contextmanager
def joined(rank: int, world: int, meeting: str, device: torch.device, seconds: float, shard: bool) -> Iterator[Ranks]:
    """Join the process group of a trial for the duration of the block; no group where ``world`` is 1.

    Args:
        rank: rank of this process, counted from 0.
        world: number of ranks.
        meeting: URL where ranks find each other, the ``init_method`` of :func:`torch.distributed.init_process_group`.
        device: device of this rank.
        seconds: timeout for the other ranks, at the start and in every collective.
        shard: whether ranks hold parts of the model.

    Raises:
        ConfigError: if this torch has no process groups, or none for this device.
    """
    if world == 1:
        yield Ranks()
        return
    if not dist.is_available():
        raise ConfigError("this torch was built without torch.distributed; use one worker per trial")
    dist.init_process_group(
        devices.backend(device),
        init_method=meeting,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=seconds),
        # Binds NCCL's communicator to the device; gloo has none.
        device_id=None if device.type == "cpu" else device,
    )
    try:
        yield Ranks(rank, world, shard)
    finally:
        dist.destroy_process_group()
