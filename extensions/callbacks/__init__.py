"""Callbacks for the training loops of other libraries, which measure the noise scale or report evaluations to a sweep:
one file per library, none imported here."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.distributed import data_parallel_groups, initialized
from cbs.noise_scale.probe import REPLICAS
from cbs.training.reporting import report


class Notes:
    """Logger that passes each message on only once, to a library's own logger."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._logged: set[str] = set()

    def __call__(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            self._log(line)


def build(
    model: nn.Module,
    optimizer: Any,
    options: dict[str, Any],
    *,
    tell: Notes,
    micro_batches: int,
    setting: str,
) -> NoiseScaleMeter:
    """Build a :class:`~cbs.noise_scale.NoiseScaleMeter` whose source suits the run: with several ranks, ``replicas``.

    It is refused if its source needs more ``micro_batches`` than a step of the run has on every rank, whose number the
    library calls ``setting``, or if the model does not show which ranks average its gradients because it is the module
    inside DDP.
    """
    if initialized() and dist.get_world_size() > 1:
        options = {"source": REPLICAS} | options
        if options["source"] != REPLICAS and not data_parallel_groups(model):
            raise ConfigError(
                f"source {options['source']!r} needs the module that averages gradients over ranks, but this library "
                "passes the inner module to its callbacks; use source 'replicas'"
            )
    noise_scale = NoiseScaleMeter(model, optimizer, **{"tell": tell} | options)
    needed = noise_scale.probe.micro_batches
    if micro_batches < needed:
        noise_scale.detach()
        raise ConfigError(
            f"source {noise_scale.probe.source!r} compares micro-batches and needs {needed} of them in a step, "
            f"but the run has {setting}={micro_batches}: raise it, or pass another source"
        )
    return noise_scale


def report_metrics(step: int, batch_size: int, metrics: Mapping[str, Any], main: str) -> None:
    """Report all numbers of an evaluation by their names, as :func:`cbs.report` does: the loss is ``main`` or, if there
    is none, the first whose name ends with ``loss``. The batch size is that of an update, over all devices and passes.
    """
    numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float, Tensor))}
    losses = [name for name in (main, *numbers) if name in numbers and (name == main or name.endswith("loss"))]
    further = {name: value for name, value in numbers.items() if name not in ("step", "examples", "loss")}
    if losses:
        report(step, step * batch_size, numbers[losses[0]], **further)
