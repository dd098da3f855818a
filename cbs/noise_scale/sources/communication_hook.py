"""Data-parallel ranks under DDP, seen by its communication hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cbs.errors import ConfigError
from cbs.noise_scale.distributed import data_parallel_groups
from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.passes import CountExamples, ForwardPasses, first_dimension
from cbs.noise_scale.small_batch import Small, gathered
from cbs.noise_scale.sources import SOURCES


@SOURCES.register("communication_hook")
class CommunicationHook:
    """Every rank is one group (McCandlish et al. 2018, appendix A.1), read off DDP's buckets before they are averaged.

    Parameters get no tensor hooks: micro-batches under ``no_sync()`` cost nothing, and a synchronisation costs one read
    of the gradient. Prefer it where backward passes must stay as they are. Prefer ``replicas`` with few ranks and
    several micro-batches, which are groups of their own there and make estimates scatter less, and where the model is
    not DDP, synchronises every micro-batch or has a communication hook already.

    The hook averages as DDP does without one, bit for bit; only with ``gradient_as_bucket_view=True`` together with
    ``zero_grad(set_to_none=False)``, on a number of ranks that is no power of two, may the last bit differ. torch
    cannot remove it: after :meth:`detach` it averages and does nothing else, and the next source on the same model
    uses it again.

    A group holds the examples of all forward passes since the last :meth:`collect` that had gradients enabled, so what
    is not differentiated belongs under ``torch.no_grad()``. Parameters that DDP was told to ignore are not watched.

    Args:
        model: what is called in the training loop, a ``DistributedDataParallel`` module.
        parameters: trainable parameter tensors.
        geometries: what to measure.
        groups: ignored; the ranks decide.
        count: number of examples of a forward pass, on this rank.

    Raises:
        ConfigError: if the model is not DDP, or has a single rank; from :meth:`attach`, if DDP has a communication
            hook; from :meth:`collect`, if gradients were synchronised twice in a step.
    """

    micro_batches = 1

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        geometries: Sequence[Geometry],
        *,
        groups: int = 2,
        count: CountExamples = first_dimension,
    ) -> None:
        wrapped = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        if len(wrapped) != 1:
            raise ConfigError(
                "source 'communication_hook' needs a model in DistributedDataParallel, and this one has "
                f"{len(wrapped)} such modules; use source 'replicas'"
            )
        self._ddp = wrapped[0]
        self.ranks = data_parallel_groups(model)
        if dist.get_world_size(self._ddp.process_group) < 2:
            raise ConfigError(
                "source 'communication_hook' compares ranks, and there is one; start several with torchrun, "
                "or use source 'split'"
            )
        averaged = {
            id(parameter)
            for name, parameter in self._ddp.module.named_parameters()
            if name not in self._ddp.parameters_to_ignore
        }
        self._parameters = parameters
        self._places = {id(parameter): index for index, parameter in enumerate(parameters) if id(parameter) in averaged}
        self._geometries = geometries
        self._count = count
        self.active = True
        self._passes = ForwardPasses(model, self._add_examples)
        self._forget()

    def watched(self, index: int) -> bool:
        return id(self._parameters[index]) in self._places

    def attach(self) -> None:
        averaging = _HOOKS.get(self._ddp)
        if averaging is None:
            known = self._ddp._get_ddp_logging_data().get("comm_hook")
            if known:
                raise ConfigError(
                    f"the model has a communication hook already ({known}) and DDP takes one only; use source "
                    "'replicas', which goes with any"
                )
            averaging = Averaging(self._ddp)
            self._ddp.register_comm_hook(averaging, average)
            _HOOKS[self._ddp] = averaging
        averaging.readers.append(ref(self))
        self._passes.attach()

    def detach(self) -> None:
        self._passes.detach()
        averaging = _HOOKS.get(self._ddp)
        if averaging is not None:
            averaging.readers = [reader for reader in averaging.readers if reader() not in (None, self)]

    def collect(self) -> Small | None:
        seen, twice, examples, statistics = self._seen, self._twice, self._examples, self._statistics
        self._forget()
        if twice:
            raise ConfigError(
                "gradients were synchronised twice in a step, and the second time they hold the average of the first; "
                "run all micro-batches but the last under no_sync(), or use source 'replicas'"
            )
        if not (seen and examples):
            return None
        small = Small(
            statistics=[
                gathered(geometry, table, self._parameters, self._places.values())
                for geometry, table in zip(self._geometries, statistics, strict=True)
            ],
            groups=1,
            size=examples,
            examples=examples,
        )
        return small

    def read(self, bucket: dist.GradBucket) -> None:
        """Take the statistics of a bucket that holds this rank's own gradients."""
        if not self.active:
            return
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            index = self._places.get(id(parameter))
            if index is None:
                continue
            self._twice |= index in self._seen
            self._seen.add(index)
            for geometry, table in zip(self._geometries, self._statistics, strict=True):
                if geometry.covers(index):
                    table[index] = geometry.statistic(index, _in_shape(gradient, parameter)[None])

    def _forget(self) -> None:
        self._examples = 0
        self._twice = False
        self._seen: set[int] = set()
        self._statistics: list[dict[int, Tensor]] = [{} for _ in self._geometries]

    def _add_examples(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        examples = self._count(args, kwargs)
        self._examples += examples
        return examples


class Averaging:
    """What the communication hook of a DDP module knows.

    Args:
        model: the DDP module.

    Attributes:
        group: process group; ``None`` for that of all ranks, so that the module can be copied and saved.
        readers: sources that look into every bucket.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.group = None if model.process_group is dist.group.WORLD else model.process_group
        self.readers: list[ref[CommunicationHook]] = []


def average(state: Averaging, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The communication hook: let the readers read, then average over ranks."""
    for reader in state.readers:
        source = reader()
        if source is not None:
            source.read(bucket)
    buffer = bucket.buffer().mul_(1.0 / dist.get_world_size(state.group))  # as DDP: not a division
    work = dist.all_reduce(buffer, group=state.group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


average.__annotations__.clear()  # DDP compares them with types, and takes the text for another type

_HOOKS: WeakKeyDictionary[DistributedDataParallel, Averaging] = WeakKeyDictionary()


def _in_shape(gradient: Tensor, parameter: Tensor) -> Tensor:
    """A gradient of a bucket with its entries in place.

    DDP lays a gradient out in the memory order of its parameter, if that is dense, and ``GradBucket.gradients()`` reads
    it row by row.
    """
    if parameter.is_contiguous():
        return gradient
    return gradient.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())
