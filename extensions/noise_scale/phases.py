"""The noise scale during a short training run, by phase of the run and by geometry."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cbs.compute import seeding
from cbs.compute.device import pick
from cbs.errors import ConfigError
from cbs.noise_scale.averages import Estimate
from cbs.noise_scale.geometries import build_geometry
from cbs.noise_scale.interval import corrected
from cbs.noise_scale.meter import NoiseScaleMeter
from cbs.optimizers.matching import matched
from cbs.training.loop import TrainingLoop
from cbs.training.noise_scale import ProbeOptions
from cbs.training.parts import Part, TrainingStep
from cbs.trial.config import TrialConfig
from cbs.workloads import Workload, build_workload

CORRECTED = "_corrected"  # Suffix of the name of a geometry whose noise scale is corrected for the batch size


@dataclass(frozen=True, kw_only=True)
class MeasuredPhase:
    """A phase of the run: a stretch of consecutive steps.

    Attributes:
        first_step, last_step: first and last optimizer update.
        first_examples, last_examples: number of examples seen before the first and after the last of them.
        train_loss: mean over the steps.
        noise_scales: noise scale by geometry, in examples; for a geometry of exponent 2 also the value corrected for
            the batch size, as in ``l1_corrected``.
        layers: noise scale by layer, in the first geometry.
    """

    first_step: int
    last_step: int
    first_examples: int
    last_examples: int
    train_loss: float
    noise_scales: dict[str, Estimate]
    layers: dict[str, Estimate]


@dataclass(frozen=True, kw_only=True)
class NoiseScaleRun:
    """Result of :func:`measure_run`.

    Attributes:
        config: configuration that was trained.
        source: name of the source of the small-batch side.
        matched: geometry of the optimizer.
        symbols: LaTeX symbols of the noise scales, by their names in ``phases``.
        example_unit: what one example is.
        tokens_per_example: number of tokens in an example, or ``None``.
        phases: the phases in order.
    """

    config: TrialConfig
    source: str
    matched: str
    symbols: dict[str, str]
    example_unit: str
    tokens_per_example: int | None
    phases: tuple[MeasuredPhase, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain = dataclasses.asdict(self)
        return plain | {"config": self.config.to_dict(), "phases": list(plain["phases"])}


def phase_ends(steps: int, phases: int) -> list[int]:
    """Return the last step of every phase: each phase is as long as all before it, because the noise scale changes
    fastest early.

    Raises:
        ConfigError: if there are too few steps.
    """
    if phases < 1:
        raise ConfigError(f"phases must be at least 1, got {phases}")
    ends = [math.ceil(steps / 2**back) for back in reversed(range(phases))]
    if ends[0] < 2 or len(set(ends)) < phases:
        raise ConfigError(f"{steps} steps are too few for {phases} phases; take at least {2**phases} steps")
    return ends


def measure_run(
    config: TrialConfig,
    *,
    workload: Workload | None = None,
    phases: int = 4,
    confidence: float = 0.95,
    progress: Callable[[], None] = lambda: None,
) -> NoiseScaleRun:
    """Train for ``config.max_steps`` steps and measure the noise scale in every phase.

    The target of the configuration is ignored.

    Args:
        config: configuration to train; its probe sets the source of the small-batch side and the geometries to measure
            in.
        workload: the built workload of ``config.workload``, to avoid loading its data again.
        phases: number of phases, each as long as all before it.
        confidence: confidence level of the intervals.
        progress: called after every step.

    Raises:
        ConfigError: if the configuration cannot run, or the loss becomes infinite or NaN.
    """
    if config.probe is None:
        raise ConfigError("the configuration has no probe; there is nothing to measure")
    if config.batch_schedule is not None:
        raise ConfigError("the noise scale during a run is measured at one batch size; leave out the batch schedule")
    ends = phase_ends(config.max_steps, phases)
    workload = workload or build_workload(config.workload)
    options = ProbeOptions.of(config.probe)
    # without the trial's own probe, which would measure each step a second time
    loop = TrainingLoop(dataclasses.replace(config, probe=None), workload, pick(config.device, config.precision))
    measured_phases = []

    noise_scale = NoiseScaleMeter(
        loop.trained,
        loop.optimizer,
        source=options.source,
        geometry=options.geometry,
        parts=options.parts,
        every=options.every or 1,  # the run is short, and here the noise scale is what it is for
        window=None,  # a phase is the window: everything since the last reset
        count=lambda args, kwargs: loop.gradient.in_pass,
    )
    loop.passes.probe = noise_scale.probe
    loop.parts.insert(0, _Reading(noise_scale))  # first, as clipping changes gradients
    step = 0
    with seeding.seeded(config.seed, "training"):
        for end in ends:
            first = step + 1
            while step < end:
                step += 1
                loop.train_step(step)
                progress()
            losses = loop.columns.flush()[:, 0]
            if not np.isfinite(losses).all():
                bad = first + int(np.argmin(np.isfinite(losses)))
                raise ConfigError(
                    f"the training loss is not finite at step {bad}; lower the learning rate ({config.lr:g})"
                )
            estimates: dict[str, Estimate] = {}
            for geometry in noise_scale.probe.geometries:
                name = geometry.name
                estimates[name] = noise_scale.estimate(geometry=name, confidence=confidence)
                if geometry.exponent == 2 and "l2" in estimates:
                    estimates[f"{name}{CORRECTED}"] = corrected_estimate(
                        estimates[name], estimates["l2"], config.batch_size
                    )
            measured_phases.append(
                MeasuredPhase(
                    first_step=first,
                    last_step=end,
                    first_examples=(first - 1) * config.batch_size,
                    last_examples=end * config.batch_size,
                    train_loss=float(losses.mean()),
                    noise_scales=estimates,
                    layers=noise_scale.estimate("layer", confidence=confidence),
                )
            )
            noise_scale.reset()
    noise_scale.detach()
    return NoiseScaleRun(
        config=config,
        source=noise_scale.probe.source,
        matched=build_geometry(matched(loop.optimizer)).name,
        symbols={entry.name: entry.symbol for entry in noise_scale.probe.geometries}
        | {entry.name + CORRECTED: rf"{entry.symbol}^{{\mathrm{{corr}}}}" for entry in noise_scale.probe.geometries},
        example_unit=workload.example_unit,
        tokens_per_example=workload.tokens_per_example,
        phases=tuple(measured_phases),
    )


def corrected_estimate(measured: Estimate, simple: Estimate, batch_size: int) -> Estimate:
    """Return a noise scale of exponent 2 corrected for the bias of the batch size; undefined without a simple noise
    scale.
    """
    if measured.value is None:
        return measured
    if simple.value is None:
        note = f"its correction needs the simple noise scale: {simple.note}"
        return replace(measured, value=None, low=None, high=None, note=note)
    value, (low, high) = corrected(measured.value, measured.interval, simple.value, simple.interval, batch_size)
    return replace(measured, value=value, low=low, high=high, note=measured.note or simple.note)


class _Reading(Part):
    """Part of the loop that lets a meter measure the gradients of every step before they are clipped."""

    def __init__(self, meter: NoiseScaleMeter) -> None:
        self._meter = meter

    def before_step(self, step: TrainingStep) -> None:
        self._meter.step()
