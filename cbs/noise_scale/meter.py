"""The drop-in: attach to a model, measure every step, read a noise scale with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.averages import MomentAverages
from cbs.noise_scale.check import check
from cbs.noise_scale.estimate import Estimate
from cbs.noise_scale.moments import Moments
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.probe import AUTO, Probe

_FLUSH = 64
"""Steps whose moments stay on the device before they are moved to the host in one go."""


class NoiseScaleMeter(AbstractContextManager["NoiseScaleMeter"]):
    r"""The gradient noise scale of a training run, in examples.

    ::

        meter = NoiseScaleMeter(model)  # attach
        for batch in batches:
            loss(model, batch).backward()
            meter.step()  # measure: before unscaling, clipping and the optimizer
            optimizer.step()
            optimizer.zero_grad()
        print(meter.estimate())  # read: 41.2 [36.0, 48.1] examples

    In the Euclidean geometry this is :math:`B_{simple} = tr(\Sigma)/|G|^2` (McCandlish et al. 2018, equation 2.9): the
    trace of the per-example gradient covariance over the squared norm of the true gradient. Both moments are estimated
    without bias at every step, averaged over steps, and divided last. An estimate that is undefined says so.

    The gradients in ``.grad`` have to be those of the mean loss over the whole batch, as usual: under accumulation the
    loss of a micro-batch is divided by their number, or weighted by its share of the examples where they differ in
    size.

    Args:
        model: what is called in the training loop.
        optimizer: needed by geometries that belong to one, and for estimates by parameter group.
        source: where the small-batch side comes from, a name in :data:`~cbs.noise_scale.sources.SOURCES`; ``"auto"``
            takes ``split`` where every layer of the model can be watched, and ``accumulation`` where not.
        geometry: what is measured, a name in :data:`~cbs.noise_scale.geometries.GEOMETRIES`, ``"matched"`` for that of
            the optimizer, or several of them.
        groups: groups a backward pass is split into by ``split``, all equally large: the next larger number where this
            one does not divide the examples.
        every: measure one step in that many; the others run as if nothing was attached.
        window: average over the latest ``window`` examples.
        count: number of examples of a forward pass, from its arguments ``(args, kwargs)``; the first dimension of the
            first tensor by default.

    Attributes:
        probe: what measures a step.

    Raises:
        ConfigError: if an argument is out of its domain, or the model does not suit the source.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        source: str = AUTO,
        geometry: str | Sequence[str] = "l2",
        groups: int = 2,
        every: int = 1,
        window: int | None = None,
        count: CountExamples = first_dimension,
    ) -> None:
        names = [geometry] if isinstance(geometry, str) else list(geometry)
        if not names:
            raise ConfigError("name at least one geometry")
        new_averages = partial(MomentAverages, window=window)
        new_averages()  # refuses a bad window before anything is attached
        self._optimizer = optimizer
        self.probe = Probe(model, optimizer, source=source, geometries=names, groups=groups, every=every, count=count)
        self._averages = {entry.name: new_averages() for entry in self.probe.geometries}
        self._new_averages = new_averages
        self._pending: list[dict[str, Moments]] = []

    @property
    def geometries(self) -> tuple[str, ...]:
        """Names of what is measured."""
        return tuple(self._averages)

    def step(self, *, loss_scale: float | Tensor = 1.0, gradients_unscaled: bool = False) -> None:
        """Measure the step whose gradients are in ``.grad``; call it once per optimizer step.

        It belongs after the last backward pass of a step and before anything that changes gradients.

        Args:
            loss_scale: with a GradScaler, ``scaler.get_scale()``. Steps whose gradients overflowed are left out.
            gradients_unscaled: whether ``scaler.unscale_`` was called already.

        Raises:
            ConfigError: if there was no backward pass, or the gradients were changed since.
        """
        moments = self.probe.step(loss_scale=float(loss_scale), gradients_unscaled=gradients_unscaled)
        if moments is None:
            raise ConfigError(
                "the noise scale saw no backward pass in this step; build NoiseScaleMeter before the forward pass, "
                "on the module that is called in the training loop"
            )
        if moments:
            self._pending.append(moments)
        if len(self._pending) >= _FLUSH:
            self._flush()

    @overload
    def estimate(self, by: None = None, *, geometry: str | None = None, confidence: float = 0.95) -> Estimate: ...

    @overload
    def estimate(
        self,
        by: Literal["layer", "parameter", "parameter_group"],
        *,
        geometry: str | None = None,
        confidence: float = 0.95,
    ) -> dict[str, Estimate]: ...

    def estimate(
        self,
        by: Literal["layer", "parameter", "parameter_group"] | None = None,
        *,
        geometry: str | None = None,
        confidence: float = 0.95,
    ) -> Estimate | dict[str, Estimate]:
        """The noise scale with its interval, over everything or the window.

        Args:
            by: ``None`` for all parameters together; ``"layer"`` for every module that holds parameters,
                ``"parameter"`` for every tensor, ``"parameter_group"`` for the groups of the optimizer, as a
                dictionary by name.
            geometry: which of several; the first by default.
            confidence: of the interval.

        Raises:
            ConfigError: if the geometry is not measured, or parameter groups are asked for without an optimizer.
        """
        self._flush()
        name = geometry or self.geometries[0]
        if name not in self._averages:
            raise ConfigError(
                f"geometry {name!r} is not measured; this NoiseScaleMeter has {', '.join(self.geometries)}"
            )
        exponent = next(entry.exponent for entry in self.probe.geometries if entry.name == name)
        averages = self._averages[name]
        if by is None:
            found = averages.estimate(exponent=exponent, confidence=confidence)
            return replace(found, note="; ".join(filter(None, (found.note, self.probe.caveat))))
        parts: dict[str, list[int]] = {}
        for place, index in enumerate(self.probe.indices(name)):
            parts.setdefault(self._part(by, index), []).append(place)
        return {
            part: averages.estimate(places, exponent=exponent, confidence=confidence) for part, places in parts.items()
        }

    check = staticmethod(check)

    @property
    def skipped(self) -> int:
        """Steps left out because a moment was not finite: one group only, or overflowed gradients."""
        self._flush()
        return self._averages[self.geometries[0]].skipped

    def reset(self) -> None:
        """Forget what was measured."""
        self._pending = []
        self._averages = {name: self._new_averages() for name in self._averages}

    def state_dict(self) -> dict[str, Any]:
        """The averages, for a checkpoint."""
        self._flush()
        return {name: averages.state_dict() for name, averages in self._averages.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`.

        Raises:
            ConfigError: if it is of other geometries.
        """
        if set(state) != set(self._averages):
            raise ConfigError(
                f"the saved noise scale has the geometries {', '.join(sorted(state))}, "
                f"this one {', '.join(sorted(self._averages))}"
            )
        self._pending = []
        for name, averages in self._averages.items():
            averages.load_state_dict(state[name])

    def detach(self) -> None:
        """Stop measuring and leave the model as it was; what was measured can still be read."""
        self.probe.detach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __str__(self) -> str:
        return str(self.estimate())

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        for name, averages in self._averages.items():
            table = torch.stack([torch.stack((step[name].signal, step[name].noise)) for step in pending])
            for step, (signal, noise) in zip(pending, table.cpu().numpy().astype(np.float64), strict=True):
                averages.add(round(step[name].sizes.big), signal, noise)

    def _part(self, by: str, index: int) -> str:
        """Name of what a parameter tensor is counted to."""
        name = self.probe.names[index]
        if by == "parameter":
            return name
        if by == "layer":
            return name.rpartition(".")[0] or name
        if by != "parameter_group":
            raise ConfigError(f"estimates come by 'layer', 'parameter' or 'parameter_group', not by {by!r}")
        if self._optimizer is None:
            raise ConfigError("estimates by parameter group need the optimizer: NoiseScaleMeter(model, optimizer)")
        for number, group in enumerate(self._optimizer.param_groups):
            if any(parameter is self.probe.parameters[index] for parameter in group["params"]):
                return str(group.get("name", number))
        return "not optimized"
