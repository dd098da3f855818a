"""The drop-in: attach to a model, measure every step, read a noise scale with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.averages import MomentAverages
from cbs.noise_scale.check import check
from cbs.noise_scale.estimate import Estimate, Nested
from cbs.noise_scale.grouping import Groups
from cbs.noise_scale.moments import Moments
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.probe import AUTO, NO_BACKWARD, Probe

LEVELS = ("between", "within")

SHARE = 0.2
"""Of the examples so far, by default."""

_FLUSH = 64
"""Steps whose moments stay on the device before they are moved to the host in one go."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The moments of one step, unbiased and noisy: means over many steps are divided, not ratios averaged.

    Attributes:
        signal: of all parameters, a tensor of one number on their device.
        noise: likewise.
    """

    signal: Tensor
    noise: Tensor

    @property
    def ratio(self) -> float:
        """``noise / signal``; waits for the device."""
        return float(self.noise / self.signal)


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
            takes ``split``, and ``accumulation`` from the step on that shows that it must.
        geometry: what is measured, a name in :data:`~cbs.noise_scale.geometries.GEOMETRIES`, ``"matched"`` for that of
            the optimizer, or several of them.
        parts: parts a backward pass is split into by ``split``, all equally large: the next larger number where this
            one does not divide the examples.
        groups: examples that belong together, as answers to one prompt or augmentations of one image do: the number of
            neighbours that make a group, a tensor with the group of every example of a forward pass, or a function of
            its ``(args, kwargs)`` that returns one. The group is then the example: it is what noise scales count, and
            :meth:`nested` tells the noise between groups from that within them.
        every: measure one step in that many; the others run as if nothing was attached. By default as many as keep its
            cost at 5 % of a long run: all of the first 64 and one in 14 after them for ``split`` in two, fewer the
            more groups there are, and all where measuring costs no backward pass.
        window: average over the latest ``window`` examples, or over that share of all so far (and 64 measured steps at
            least), as noise scales grow along a run; ``None`` for the whole run.
        count: number of examples of a forward pass, from its arguments ``(args, kwargs)``; the first dimension of the
            first tensor by default.
        tell: takes a line where what is measured is not what was, or not with what was meant; by default it is a
            :class:`~cbs.noise_scale.probe.NoiseScaleWarning`.

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
        parts: int = 2,
        groups: Groups = 1,
        every: int | None = None,
        window: float | None = SHARE,
        count: CountExamples = first_dimension,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        names = [geometry] if isinstance(geometry, str) else list(geometry)
        if not names:
            raise ConfigError("name at least one geometry")
        new_averages = partial(MomentAverages, window=window)
        new_averages()  # refuses a bad window before anything is attached
        self._optimizer = optimizer
        self.probe = Probe(
            model, optimizer, source=source, geometries=names, parts=parts, groups=groups, every=every, count=count,
            tell=tell,
        )  # fmt: skip
        self._averages = {entry.name: new_averages() for entry in self.probe.geometries}
        self._levels = {name: new_averages() for name in LEVELS}
        self._members = 1
        self._renewals = 0
        self._known: dict[Any, Any] = {}
        self._new_averages = new_averages
        self._pending: list[dict[str, Moments]] = []

    @property
    def window(self) -> float | None:
        """The window that it averages over."""
        return self._averages[self.geometries[0]].window

    @property
    def geometries(self) -> tuple[str, ...]:
        """Names of the measured geometries."""
        return tuple(self._averages)

    def step(self, *, loss_scale: float | Tensor = 1.0, gradients_unscaled: bool = False) -> Step | None:
        """Measure the step whose gradients are in ``.grad``; call it once per optimizer step.

        It belongs after the last backward pass of a step and before anything that changes gradients.

        Args:
            loss_scale: with a GradScaler, ``scaler.get_scale()``. Steps whose gradients overflowed are left out.
            gradients_unscaled: whether ``scaler.unscale_`` was called already.

        Returns:
            What this step says in the first geometry; ``None`` where it was not measured.

        Raises:
            ConfigError: if there was no backward pass, or the gradients were changed since.
        """
        moments = self.probe.step(loss_scale=float(loss_scale), gradients_unscaled=gradients_unscaled)
        if moments is None:
            raise ConfigError(NO_BACKWARD)
        if self._renewals != self.probe.renewals:
            self._renewals = self.probe.renewals
            self.reset()
        if not moments:
            return None
        self._known.clear()
        self._pending.append(moments)
        if len(self._pending) >= _FLUSH:
            self._flush()
        plain = moments[self.geometries[0]]
        return Step(signal=plain.signal.sum(), noise=plain.noise.sum())

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
        """The noise scale with its interval, over the window.

        Args:
            by: ``None`` for all parameters together; ``"layer"`` for every module that holds parameters,
                ``"parameter"`` for every tensor, ``"parameter_group"`` for the groups of the optimizer, as a
                dictionary by name.
            geometry: which of several; the first by default.
            confidence: of the interval.

        Raises:
            ConfigError: if the geometry is not measured, or parameter groups are asked for without an optimizer.
        """
        asked = by, geometry, confidence
        if asked not in self._known:
            self._known[asked] = self._estimated(*asked)
        return self._known[asked]

    def _estimated(
        self, by: Literal["layer", "parameter", "parameter_group"] | None, geometry: str | None, confidence: float
    ) -> Estimate | dict[str, Estimate]:
        self._flush()
        name = geometry or self.geometries[0]
        if name not in self._averages:
            raise ConfigError(
                f"geometry {name!r} is not measured; this NoiseScaleMeter has {', '.join(self.geometries)}"
            )
        exponent = next(entry.exponent for entry in self.probe.geometries if entry.name == name)
        averages = self._averages[name]
        if by is None:
            estimate = averages.estimate(exponent=exponent, confidence=confidence)
            return replace(self._counted(estimate), note="; ".join(filter(None, (estimate.note, self.probe.caveat))))
        parts: dict[str, list[int]] = {}
        for place, index in enumerate(self.probe.indices(name)):
            parts.setdefault(self._part(by, index), []).append(place)
        return {
            part: self._counted(averages.estimate(places, exponent=exponent, confidence=confidence))
            for part, places in parts.items()
        }

    def nested(self, *, confidence: float = 0.95) -> Nested:
        r"""The noise between groups and within a group, in the Euclidean geometry.

        The gradient of example j of group i is :math:`G + a_i + e_{ij}`. With :math:`\Sigma_b, \Sigma_w` the
        covariances of a and e, the noise of a group of n examples is :math:`tr(\Sigma_b) + tr(\Sigma_w)/n`: the first
        falls with the number of groups alone, the second with that of all examples. The trace of :math:`\Sigma_w` is
        the variance of the cells of a part around it (one-way analysis of variance), and that of :math:`\Sigma_b` is
        what is left; it is negative where the members of a group make up for each other, as with advantages whose sum
        is zero.

        Args:
            confidence: of the intervals.

        Raises:
            ConfigError: without ``groups`` of two examples or more, a source that looks inside a group, or ``l2``.
        """
        whole = self.estimate(geometry="l2", confidence=confidence)
        if not self._levels["within"].steps:
            raise ConfigError(
                "nothing is known of the noise within groups: pass groups= of two examples or more, and take a source "
                "that looks inside a group, 'split' or 'per_example'"
            )
        between, within = (self._levels[name].estimate(confidence=confidence) for name in LEVELS)
        return Nested(members=self._members, groups=whole, between=replace(between, unit="groups"), within=within)

    def _counted(self, estimate: Estimate) -> Estimate:
        return estimate if self._members == 1 else replace(estimate, unit=f"groups of {self._members} examples")

    def log(self) -> dict[str, float]:
        """``noise_scale/simple`` with the ends of its interval, ``/low`` and ``/high``, for a tracker of experiments;
        what is undefined is left out. Under a geometry other than ``l2`` the first is called by its name."""
        estimates, geometry = self.estimate(), self.geometries[0]
        values = {
            "simple" if geometry == "l2" else geometry: estimates.value,
            "low": estimates.low,
            "high": estimates.high,
        }
        return {f"noise_scale/{name}": value for name, value in values.items() if value is not None}

    def paused(self) -> AbstractContextManager[None]:
        """Do not watch inside the block, as for passes that are not part of a step."""
        return self.probe.paused()

    check = staticmethod(check)

    @property
    def skipped(self) -> int:
        """Steps left out because a moment was not finite: one group only, or overflowed gradients."""
        self._flush()
        return self._averages[self.geometries[0]].skipped

    def reset(self) -> None:
        """Forget what was measured."""
        self._pending = []
        self._known.clear()
        self._averages = {name: self._new_averages() for name in self._averages}
        self._levels = {name: self._new_averages() for name in self._levels}

    def state_dict(self) -> dict[str, Any]:
        """The averages, for a checkpoint."""
        self._flush()
        levels = self._levels if self._members > 1 else {}
        return {name: averages.state_dict() for name, averages in (self._averages | levels).items()} | (
            {"members": self._members} if levels else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            ConfigError: if it is of other geometries.
        """
        state = dict(state)
        self._members = state.pop("members", 1)
        levels = {name: state.pop(name) for name in LEVELS if name in state}
        if set(state) != set(self._averages):
            raise ConfigError(
                f"the saved noise scale has the geometries {', '.join(sorted(state))}, "
                f"this one {', '.join(sorted(self._averages))}"
            )
        self._pending = []
        self._known.clear()
        for name, averages in self._averages.items():
            averages.load_state_dict(state[name])
        for name, saved in levels.items():
            self._levels[name].load_state_dict(saved)

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
                self._members = step[name].sizes.members
                averages.add(round(step[name].sizes.big * self._members), signal, noise)
        for moments in filter(None, (step.get("l2") for step in pending)):
            if moments.within is not None:
                rows = torch.stack((moments.signal, moments.noise, moments.within)).cpu().double().numpy()
                examples, (signal, noise, within) = round(moments.sizes.big * self._members), rows
                self._levels["between"].add(examples, signal, noise - within / self._members)
                self._levels["within"].add(examples, signal, within)

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
