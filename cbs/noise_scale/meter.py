"""The drop-in for any training loop: attach it to a model, measure every step, read a noise scale with its interval."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.averages import Estimate, MomentAverages, Nested
from cbs.noise_scale.check import check
from cbs.noise_scale.geometries import resolved
from cbs.noise_scale.grouping import Groups
from cbs.noise_scale.moments import BETWEEN, WITHIN, Moments
from cbs.noise_scale.passes import CountExamples, Weights, first_dimension
from cbs.noise_scale.probe import AUTO, Probe

# Default window: this share of all examples so far
SHARE = 0.2

_FLUSH = 64  # Number of steps whose moments stay on the device before they are moved to the host in one transfer


@dataclass(frozen=True, kw_only=True)
class Step:
    """The moments of one step, unbiased but noisy: average them over many steps before dividing, do not average ratios.

    Attributes:
        signal: sum over all parameters, a scalar tensor on their device.
        noise: sum over all parameters, a scalar tensor on their device.
    """

    signal: Tensor
    noise: Tensor

    @property
    def ratio(self) -> float:
        """The ratio ``noise / signal``; waits for the device."""
        return float(self.noise / self.signal)


class NoiseScaleMeter(AbstractContextManager["NoiseScaleMeter"]):
    r"""The gradient noise scale of a training run, in examples.

    In the Euclidean geometry this is :math:`B_{simple} = tr(\Sigma)/|G|^2` (McCandlish et al. 2018, equation 2.9): the
    trace of the per-example gradient covariance over the squared norm of the true gradient. Both moments are estimated
    without bias at every step and averaged over steps; their ratio is taken last. An undefined estimate is ``None``,
    with a note that says why. Call :meth:`step` after the backward pass, before gradients are clipped or applied:

    >>> model = nn.Linear(4, 1)
    >>> meter = NoiseScaleMeter(model)
    >>> for _ in range(32):
    ...     model.zero_grad()
    ...     model(torch.randn(16, 4)).square().mean().backward()
    ...     moments = meter.step()
    >>> meter.estimate().value > 0
    True

    The gradients in ``.grad`` have to be those of the mean loss over the whole batch, as usual: under accumulation,
    divide the loss of each micro-batch by the number of micro-batches, or weight it by its share of the examples.

    Args:
        model: the module that the training loop calls.
        optimizer: required by geometries that depend on the optimizer, and for estimates by parameter group.
        source: how the gradients of smaller batches are obtained, a name in :data:`~cbs.noise_scale.sources.SOURCES`;
            ``"auto"`` takes ``split``, and ``accumulation`` from the first step on that shows it impossible.
        geometry: the norm to measure in, a name in :data:`~cbs.noise_scale.geometries.GEOMETRIES`, ``"matched"`` for
            that of the optimizer, or several of them.
        parts: number of equally large parts into which ``split`` divides a batch; the next larger divisor where this
            one does not divide the number of examples.
        groups: examples that belong together, such as answers to one prompt or augmentations of one image: the number
            of consecutive examples in a group, a tensor with the group of every example of a forward pass, or a
            function of its ``(args, kwargs)`` that returns such a tensor. The noise scale then counts groups instead of
            examples, and :meth:`nested` separates the noise between groups from that within them.
        every: measure one step in this many; the others run as if nothing was attached. The default takes about 4 %
            of a long run, 10 to 14 % at steps of 1 to 2 ms: the first 32 steps, then fewer, from step 512 on one in 20
            for ``split`` into two parts, fewer for more; every step where measuring costs no extra backward pass.
        window: average over the latest ``window`` examples, or, below 1, over that share of all examples so far (at
            least 32 measured steps), because noise scales grow during a run; ``None`` for the whole run.
        count: function that returns the number of examples of a forward pass from its arguments ``(args, kwargs)``; by
            default the first dimension of the first tensor.
        weights: needed where examples or ranks do not weigh the same in the loss of a step. A function of the
            ``(args, kwargs)`` of a forward pass that returns the weight of each of its examples, shape ``[examples]``,
            such as its number of counted tokens, if the loss is divided by the sum of these weights over the step; the
            noise scale is then that of this quotient, to first order in 1/B. On ranks with unequal numbers of examples
            ``"ranks"`` if the loss of each is the mean over its own, ``"examples"`` if it is multiplied by its share.
        tell: called with a message where the meter changes what it measures or how; by default it warns with a
            :class:`~cbs.noise_scale.probe.NoiseScaleWarning`.

    Attributes:
        probe: the object that measures a step.

    Raises:
        ConfigError: if an argument is invalid, or the source does not support the model.
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
        weights: Weights | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        names = [geometry] if isinstance(geometry, str) else list(geometry)
        if not names:
            raise ConfigError("name at least one geometry")
        self._new_averages = partial(MomentAverages, window=window)
        self._new_averages()  # raises for an invalid window before anything is attached
        self._optimizer = optimizer
        self.probe = Probe(
            model, optimizer, source=source, geometries=names, parts=parts, groups=groups, every=every, count=count,
            weights=weights, tell=tell,
        )  # fmt: skip
        self._members = 1
        self._renewals = 0
        self._cached: dict[Any, Any] = {}
        self.reset()

    @property
    def geometries(self) -> tuple[str, ...]:
        """Names of the measured geometries."""
        return tuple(entry.name for entry in self.probe.geometries)

    def step(self, *, loss_scale: float | Tensor = 1.0, gradients_unscaled: bool = False) -> Step | None:
        """Measure the step whose gradients are in ``.grad``; call this once per optimizer step.

        Call it after the last backward pass of a step and before anything that changes gradients.

        Args:
            loss_scale: with a GradScaler, ``scaler.get_scale()``. Steps whose gradients overflowed are left out.
            gradients_unscaled: whether ``scaler.unscale_`` was called already.

        Returns:
            The moments of this step in the first geometry; ``None`` where the step was not measured.

        Raises:
            ConfigError: if there was no backward pass, or the gradients were changed after it.
        """
        moments = self.probe.step(loss_scale=float(loss_scale), gradients_unscaled=gradients_unscaled)
        if self._renewals != self.probe.renewals:
            self._renewals = self.probe.renewals
            self.reset()
        if not moments:
            return None
        self._cached.clear()
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
        """Return the noise scale over the window, with its interval.

        Args:
            by: ``None`` for all parameters together; ``"layer"`` for every module that holds parameters,
                ``"parameter"`` for every tensor, ``"parameter_group"`` for a group of the optimizer; each by its name.
            geometry: which of the measured geometries, also as ``"matched"``; the first by default.
            confidence: confidence level of the interval.

        Raises:
            ConfigError: if the geometry is not measured, or parameter groups are requested without an optimizer.
        """
        asked = by, geometry, confidence, self.probe.caveat  # a caveat may come between two calls
        if asked in self._cached:
            return self._cached[asked]
        self._flush()
        name = resolved(geometry or self.geometries[0], self._optimizer)
        if name not in self.geometries:
            raise ConfigError(f"geometry {name!r} is not measured; this meter has {', '.join(self.geometries)}")
        exponent = next(entry.exponent for entry in self.probe.geometries if entry.name == name)
        averages = self._averages[name]
        if by is None:
            estimate = averages.estimate(exponent=exponent, confidence=confidence)
            note = "; ".join(filter(None, (estimate.note, self.probe.caveat)))
            unseen = self.probe.unseen if name == "l2" else None
            return self._cached.setdefault(asked, replace(self._counted(estimate), note=note, unseen=unseen))
        parts: dict[str, list[int]] = {}
        for place, index in enumerate(self.probe.indices(name)):
            parts.setdefault(self._part(by, index), []).append(place)
        estimates = {
            part: self._counted(averages.estimate(places, exponent=exponent, confidence=confidence))
            for part, places in parts.items()
        }
        return self._cached.setdefault(asked, estimates)

    def nested(self, *, confidence: float = 0.95) -> Nested:
        r"""Return the noise between groups and within a group, in the Euclidean geometry.

        The gradient of example j of group i is :math:`G + a_i + e_{ij}`. With :math:`\Sigma_b, \Sigma_w` the
        covariances of a and e, the noise of a group of n examples is :math:`tr(\Sigma_b) + tr(\Sigma_w)/n`: the first
        term falls with the number of groups alone, the second with the number of all examples. The trace of
        :math:`\Sigma_w` is estimated from the variance of the cells of a part around their mean (one-way analysis of
        variance), the trace of :math:`\Sigma_b` from the remaining variance. The latter is negative where the
        gradients of a group's members cancel, as with advantages that sum to zero.

        Args:
            confidence: confidence level of the intervals.

        Raises:
            ConfigError: if groups have one example, the source cannot look inside a group, or ``l2`` is not measured.
        """
        whole = self.estimate(geometry="l2", confidence=confidence)
        if not self._averages[WITHIN].steps:
            raise ConfigError(
                "the noise within groups was not measured: pass groups= of at least two examples, and use a source "
                "that looks inside a group, 'split' or 'per_example'"
            )
        between, within = (self._averages[name].estimate(confidence=confidence) for name in (BETWEEN, WITHIN))
        return Nested(members=self._members, groups=whole, between=replace(between, unit="groups"), within=within)

    def _counted(self, estimate: Estimate) -> Estimate:
        return estimate if self._members == 1 else replace(estimate, unit=f"groups of {self._members} examples")

    def log(self) -> dict[str, float]:
        """Return values for an experiment tracker: ``noise_scale/simple`` and the ends of its interval,
        ``noise_scale/low`` and ``noise_scale/high``, and the share of the signal that examples of a batch might have in
        common unseen, ``noise_scale/unseen``.

        Undefined values are left out. In a geometry other than ``l2`` the first is called by the geometry's name.
        """
        found, geometry = self.estimate(), self.geometries[0]
        names = ("simple" if geometry == "l2" else geometry, "low", "high", "unseen")
        values = zip(names, (found.value, found.low, found.high, found.unseen), strict=True)
        return {f"noise_scale/{name}": value for name, value in values if value is not None}

    def paused(self) -> AbstractContextManager[None]:
        """Do not measure inside the block, for passes that are not part of a training step."""
        return self.probe.paused()

    check = staticmethod(check)

    @property
    def skipped(self) -> int:
        """Number of steps left out because a moment was not finite: a single group, or overflowed gradients."""
        self._flush()
        return self._averages[self.geometries[0]].skipped

    def reset(self) -> None:
        """Discard all measurements."""
        self._pending: list[dict[str, Moments]] = []
        self._cached.clear()
        self._averages = {name: self._new_averages() for name in (*self.geometries, BETWEEN, WITHIN)}

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, for a checkpoint."""
        self._flush()
        return {name: averages.state_dict() for name, averages in self._averages.items()} | {"members": self._members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state_dict` returned.

        Raises:
            ConfigError: if the state has other geometries.
        """
        saved = {*state} - {BETWEEN, WITHIN, "members"}
        if saved != {*self.geometries}:
            raise ConfigError(
                f"the saved noise scale has the geometries {', '.join(sorted(saved))}, "
                f"this one {', '.join(sorted(self.geometries))}"
            )
        self.reset()
        self._members = state["members"]
        for name, averages in self._averages.items():
            averages.load_state_dict(state[name])

    def detach(self) -> None:
        """Stop measuring and leave the model as it was; earlier measurements can still be read."""
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
            steps = [step[name] for step in pending if name in step]
            rows = torch.stack([torch.stack((one.signal, one.noise)) for one in steps]).cpu().numpy() if steps else ()
            for one, (signal, noise) in zip(steps, rows, strict=True):
                self._members = one.sizes.members
                averages.add(round(one.sizes.big * self._members), signal, noise)

    def _part(self, by: str, index: int) -> str:
        """Return the name of the layer, parameter or parameter group that a parameter tensor belongs to."""
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
