"""The moments of a step as columns of ``steps.parquet``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import Geometry
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.probe import Probe
from cbs.training.probe_options import ProbeOptions
from cbs.trial.config import Choice
from cbs.trial.record import GeometryColumns

_SIGNAL, _NOISE = "grad_sq_norm", "noise_trace"
L2_COLUMNS = ("small_batch_size", "small_grad_sq_norm", "big_grad_sq_norm", _SIGNAL, _NOISE)


class ProbeColumns:
    """A probe whose moments are summed over parameter tensors and recorded in columns.

    Columns (one value per step; NaN where undefined or not measured, except ``big_grad_sq_norm``):
        small_batch_size: mean number of examples in a group.
        small_grad_sq_norm: mean over groups of the squared gradient norm, weighted by their sizes.
        big_grad_sq_norm: squared norm of the whole batch's gradient.
        grad_sq_norm: unbiased estimate of |G|^2; may be negative.
        noise_trace: unbiased estimate of tr(Sigma), the trace of the per-example gradient covariance; may be negative.
        <geometry>_signal, <geometry>_noise: signal and noise of every geometry other than ``l2``.

    Args:
        probe: probe to read; its first geometry is ``l2``.
        choice: the probe's configuration, from which the measuring interval is computed when the batch size changes.

    Attributes:
        probe: the probe. With source ``auto`` it stops where the model cannot be measured any more.
        names: names of the columns.
        geometries: for every geometry the columns that hold its moments.
    """

    def __init__(self, probe: Probe, choice: Choice) -> None:
        self.probe = probe
        self._options = ProbeOptions.of(choice)

        def columns(of: Geometry) -> GeometryColumns:
            signal, noise = (_SIGNAL, _NOISE) if of.name == "l2" else (f"{of.name}_signal", f"{of.name}_noise")
            return GeometryColumns(geometry=of.name, symbol=of.symbol, exponent=of.exponent, signal=signal, noise=noise)

        self.geometries = tuple(map(columns, probe.geometries))
        others = [entry for entry in self.geometries if entry.geometry != "l2"]
        self._others = [entry.geometry for entry in others]
        self.names = (*L2_COLUMNS, *(name for entry in others for name in (entry.signal, entry.noise)))

    @property
    def source(self) -> str:
        """Name of the source of the small-batch side; a probe may have fallen back to another one."""
        return self.probe.source

    @property
    def watching(self) -> bool:
        """Whether the next step is measured."""
        return self.probe.watching

    def plan(self, batch_size: int) -> None:
        """Set the measuring interval for this batch size, from the next step on."""
        self.probe.measure_every(self._options.interval(batch_size))

    def start_at(self, step: int, source: str, stopped: str = "") -> None:
        """Continue as after ``step`` steps.

        Args:
            step: number of steps taken.
            source: source that measured the last of them.
            stopped: why measuring had stopped; empty if it had not.
        """
        if stopped:
            self.probe.stop(stopped)
        elif source != self.probe.source:
            self.probe.fall_back("an earlier part of the run did")
        self.probe.start_at(step)

    def step(self) -> list[Tensor]:
        """Return zero-dimensional tensors on the gradients' device, one per column."""
        try:
            moments = self.probe.step()
        except ConfigError as error:
            if not self.probe.automatic:
                raise
            self.probe.stop(str(error))
            moments = {}
        plain = moments.get("l2")
        if plain is not None and plain.sizes.groups > 1:
            signal, noise = plain.signal.sum(), plain.noise.sum()
            small, whole = signal + noise / plain.sizes.small, signal + noise / plain.sizes.big
            values = [torch.full_like(signal, plain.sizes.small), small, whole, signal, noise]
        else:
            gradients = [self.probe.parameters[index].grad for index in self.probe.indices("l2")]
            whole = get_total_norm([entry for entry in gradients if entry is not None]).square().double()
            undefined = torch.full_like(whole, float("nan"))
            values = [undefined, undefined, whole, undefined, undefined]
        for name in self._others:
            moments_there = moments.get(name)
            values += (
                [values[0] * float("nan")] * 2
                if moments_there is None
                else [moments_there.signal.sum(), moments_there.noise.sum()]
            )
        return values


def build_probe(
    choice: Choice,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    count: CountExamples = first_dimension,
) -> Probe:
    """Build the probe that a configuration names; ``l2`` is always measured, and the geometries of its options as well.

    Raises:
        ConfigError: if the source, a geometry or an option is unknown, or does not support the model.
    """
    options = ProbeOptions.of(choice)
    return Probe(
        model,
        optimizer,
        source=options.source,
        geometries=["l2", *options.geometry],
        parts=options.parts,
        every=options.interval(batch_size),
        count=count,
    )
