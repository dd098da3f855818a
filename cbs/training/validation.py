"""Measurement of a trial's metrics at every evaluation, and of whether the trial has diverged."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cbs.compute import device as devices
from cbs.compute import seeding
from cbs.compute.state import evaluating
from cbs.errors import CbsError, ConfigError, out_of_memory
from cbs.training.averaging import WeightAverage, averaged_weights
from cbs.training.metrics import METRICS, MetricInputs
from cbs.training.ranks import Ranks
from cbs.trial.config import TrialConfig
from cbs.trial.target import Direction
from cbs.workloads import Workload
from cbs.workloads.base import Batch


class Validation:
    """Measures the metrics of a trial: those of its workload, and those that the configuration requests.

    Args:
        config: configuration of the trial.
        workload: workload that validates.
        model: model that is trained.
        called: the same model as it is called, possibly compiled.
        optimizer: optimizer of the trial; some validate other weights than they train.
        average: average that is validated in place of the weights; ``None`` for the weights.
        device: device of the model.
        ranks: the workers of the trial.
        to_device: moves a batch to the device of the model.
        beside: see :class:`~cbs.training.metrics.MetricInputs`.
    """

    def __init__(
        self,
        config: TrialConfig,
        workload: Workload,
        model: nn.Module,
        called: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage | None,
        device: torch.device,
        ranks: Ranks,
        to_device: Callable[[Batch], Batch],
        beside: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._config, self._workload, self._model, self._called = config, workload, model, called
        self._optimizer, self._average, self._device, self._ranks = optimizer, average, device, ranks
        inputs = MetricInputs(workload, called, to_device, config.micro_batch_size, beside, ranks.world == 1)
        # a target's metric that is not registered is the workload's own
        wanted = {*config.metrics, *(target.metric for target in config.targets if target.metric in METRICS)}
        self._metrics = {name: METRICS.make(name, inputs) for name in sorted(wanted)}
        self._values: dict[str, float] = {}

    def measure(self, examples: np.ndarray, losses: np.ndarray) -> dict[str, float]:
        """Return all metrics by name, including that of the target.

        Random draws are the same in every evaluation, and independent of those of training.

        Args:
            examples: number of examples seen after every step since the previous evaluation, shape ``[steps]``.
            losses: mean training losses of these steps, shape ``[steps]``.

        Raises:
            ConfigError: if the metric of a target is not measured.
        """
        for metric in self._metrics.values():
            metric.observe(examples, losses)
        with (
            evaluating(self._model),
            seeding.seeded(0, "validation"),  # the same numbers at every evaluation of every trial, whatever its seed
            averaged_weights(self._optimizer, self._average),
            torch.no_grad(),
            devices.autocast(self._device, self._config.precision),
        ):
            values = self._own() | {name: metric.value() for name, metric in self._metrics.items()}
        missing = [target.metric for target in self._config.targets if target.metric not in values]
        if missing:
            measured, workload = ", ".join(sorted(values)), self._config.workload.name
            raise ConfigError(
                f"the target is on {missing[0]!r}, but workload {workload!r} measures {measured}; every workload has "
                f"{', '.join(METRICS.names())}"
            )
        self._values = values
        return dict(values)

    @property
    def directions(self) -> dict[str, Direction]:
        """Which side is better, for every measured metric other than that of the target."""
        said: Mapping[str, Direction] = getattr(self._workload, "directions", {})
        own = {name: said.get(name, self._workload.direction) for name in self._values}
        directions = own | {name: metric.direction for name, metric in self._metrics.items()}
        return {name: directions[name] for name in sorted(self._values) if name != self._config.target.metric}

    @property
    def unit(self) -> str:
        """Unit of the target's metric."""
        metric = self._metrics.get(self._config.target.metric)
        return self._workload.metric_unit if metric is None or metric.unit is None else metric.unit

    def state(self) -> dict[str, Any]:
        """Return what a later process needs to continue."""
        return {"values": self._values, "metrics": {name: metric.state() for name, metric in self._metrics.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state`."""
        self._values = dict(state["values"])
        for name, metric in self._metrics.items():
            metric.load_state(state["metrics"][name])

    def _own(self) -> dict[str, float]:
        """Return the metrics that the workload measures."""
        try:
            said = self._workload.validate(self._called)
        except Exception as error:
            is_explained = isinstance(error, CbsError) or out_of_memory(error) or not self._values
            # of sharded weights a rank sees a part, and ranks that disagree would wait for each other
            if is_explained or self._ranks.shard or tensor_not_finite(self._model) is None:
                raise
            return dict.fromkeys(self._values, math.nan)  # the metric fails because the weights are not finite
        if isinstance(said, Mapping):
            return {str(name): float(value) for name, value in said.items()}
        return {self._workload.metric: float(said)}


def tensor_not_finite(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> str | None:
    """Return a message about the first tensor that is not finite; ``None`` where all are finite.

    Checked are the weights, and if an optimizer is given also gradients and the optimizer's state.
    """
    params = list(model.named_parameters())
    asked: list[tuple[str, Any]] = [(f"weight {name}", param.data) for name, param in params]
    if optimizer is not None:
        asked += [(f"gradient of {name}", param.grad) for name, param in params]
        asked += [(f"optimizer state of {name}", optimizer.state.get(param)) for name, param in params]
    for what, value in asked:
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        if not all(bool((leaf._values() if leaf.is_sparse else leaf).isfinite().all()) for leaf in tensors):
            return f"{what} is not finite"
    return None
