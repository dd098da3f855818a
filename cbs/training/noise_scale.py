"""The noise scale as a part of the training loop.

A probe reads the gradients before they are clipped, and the moments of every step become columns of ``steps.parquet``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import MATCHED, Geometry
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.probe import AUTO, FALLBACK, PER_EXAMPLE, REPLICAS, Probe
from cbs.registry.choices import Choice
from cbs.training.parts import Part, TrainingStep
from cbs.training.ranks import Ranks
from cbs.trial.config import TrialConfig
from cbs.trial.record import GeometryColumns

_SIGNAL, _NOISE = "grad_sq_norm", "noise_trace"

L2_COLUMNS = ("small_batch_size", "small_grad_sq_norm", "big_grad_sq_norm", _SIGNAL, _NOISE)

UNMEASURED = "the noise scale is not measured: "

# Steps from one measurement to the next where it takes one extra backward pass, 70 to 90 % of a step; and least
# number of examples from one to the next.
PERIOD, EXAMPLES_PER_MEASUREMENT = 14, 64


# Number of examples of the embedded text whose steps take as long as what a measurement costs apart from the passes:
# hooks and small operations on every parameter tensor, whatever the batch size.
OVERHEAD = 128


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
            # E|g_B|^2 = |G|^2 + tr(Sigma) / B
            small, whole = signal + noise / plain.sizes.small, signal + noise / plain.sizes.big
            values = [torch.full_like(signal, plain.sizes.small), small, whole, signal, noise]
        else:
            gradients = [self.probe.parameters[index].grad for index in self.probe.indices("l2")]
            # known without a measurement, too
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


class NoiseScalePart(Part):
    """Measurement of the moments of the gradient, at the interval that the configuration's probe sets for the batch
    size.

    Args:
        config: configuration of the trial; it has a probe.
        model: the model as it is trained.
        optimizer: optimizer of the trial.
        ranks: the workers of the trial.
        examples: returns the number of examples in the current forward pass, because a workload may call its model in
            any way.

    Attributes:
        measured: the probe and its columns.
    """

    def __init__(
        self,
        config: TrialConfig,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        examples: Callable[[], int],
    ) -> None:
        assert config.probe is not None
        choice = chosen(config.probe, compiled=config.compile, ranks=ranks)
        probe = build_probe(choice, model, optimizer, config.batch_size, count=lambda args, kwargs: examples())
        self.measured = ProbeColumns(probe, choice)
        self.columns = self.measured.names
        self._batch_size, self._steps, self._before = config.batch_size, 0, 0

    @property
    def note(self) -> str:
        """Why the noise scale is not measured, in one line; empty if it is."""
        why = self.measured.probe.stopped
        return f"{UNMEASURED}{why}" if why else ""

    def begin(self, step: TrainingStep) -> None:
        if step.stage.batch_size != self._batch_size:
            self._batch_size = step.stage.batch_size
            self.measured.plan(self._batch_size)
        self._steps = self._before + step.number

    def before_step(self, step: TrainingStep) -> None:
        step.noise_measured = self.measured.watching
        step.values.update(zip(self.columns, self.measured.step(), strict=True))

    def state(self) -> dict[str, Any]:
        probe = self.measured.probe
        return {
            "source": probe.source,
            "stopped": probe.stopped,
            "batch_size": self._batch_size,
            "steps": self._steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._batch_size, self._steps = state["batch_size"], state["steps"]
        self.measured.plan(self._batch_size)
        self.measured.start_at(self._steps, state["source"], state["stopped"])

    def go_on(self, state: dict[str, Any]) -> None:
        """Continue from the first step on as the trial would have that returned ``state`` from :meth:`state`."""
        self._before = self._steps = state["steps"]
        self.measured.start_at(self._steps, state["source"], state["stopped"])


def chosen(choice: Choice, *, compiled: bool, ranks: Ranks) -> Choice:
    """Return the probe of a trial; ``auto`` is replaced where the model is compiled or there are several ranks."""
    if choice.name == AUTO and (compiled or ranks.world > 1):
        return dataclasses.replace(choice, name=REPLICAS if ranks.world > 1 else FALLBACK)
    return choice


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Options of a probe as set in a configuration.

    Attributes:
        source: name in :data:`~cbs.noise_scale.sources.SOURCES`, or ``"auto"``.
        parts: number of parts into which a backward pass is split.
        every: one step in this many is measured; ``None`` leaves it to the batch size, see :meth:`interval`.
        geometry: geometries to measure in: names in :data:`~cbs.noise_scale.geometries.GEOMETRIES`, ``"matched"`` or
            ``"all"``.
    """

    source: str
    parts: int = 2
    every: int | None = None
    geometry: tuple[str, ...] = (MATCHED,)

    @classmethod
    def of(cls, choice: Choice) -> ProbeOptions:
        """Read the options of a source: ``parts``, ``every``, and ``geometry`` as a name or a list of names.

        Raises:
            ConfigError: if an option is unknown or has the wrong type.
        """
        unknown = sorted(set(choice.options) - {"parts", "every", "geometry"})
        if unknown:
            raise ConfigError(
                f"probe {choice.name!r} has no option {unknown[0]!r}; its options are: "
                f"parts=2, every=None, geometry={MATCHED}"
            )
        geometry = choice.options.get("geometry", MATCHED)
        names = geometry if isinstance(geometry, list) else [geometry]
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"probe geometry must be a name or a list of names, got {geometry!r}")
        return cls(
            source=choice.name,
            parts=choice.options.get("parts", 2),
            every=choice.options.get("every"),
            geometry=tuple(names),
        )

    def interval(self, batch_size: int) -> int:
        """Return the number of steps from one measurement to the next.

        Measuring then costs 4 to 6 % of a run at every batch size, apart from the checks of its first few measurements;
        it is more seldom in small batches, where a measured step takes up to 2.6 times as long.
        """
        if self.every is not None:
            return self.every
        passes = {FALLBACK: 0, PER_EXAMPLE: batch_size - 1}.get(self.source, self.parts - 1)
        seldom = PERIOD * passes + (OVERHEAD // batch_size if passes else 0)
        return max(1, seldom, EXAMPLES_PER_MEASUREMENT // batch_size)
