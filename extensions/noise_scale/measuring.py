"""``cbs noise-scale`` as a function: measure the noise scale along a short run of one trial."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from cbs.compute import device, seeding
from cbs.compute.device import pick
from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.check import CheckReport
from cbs.registry.choices import Choice, parse_choice
from cbs.training import birth
from cbs.training.loop import TrainingLoop
from cbs.training.parents import parent_at
from cbs.trial.config import TrialConfig
from extensions.noise_scale.one_step import OneStepTest, one_step_test
from extensions.noise_scale.one_step_gain import one_step as measured_step
from extensions.noise_scale.phases import measure_run
from sweeps.launching.launch import resolve
from sweeps.recipes import RECIPES
from sweeps.search.trial_table import middle
from sweeps.spec.axes import Cell
from sweeps.spec.overrides import override
from sweeps.spec.workload import built

ONE_STEP_SIZES = (4, 16, 64, 256, 1024)  # Batch sizes at which single steps are tested

# Largest number of examples of a checked batch: each costs a backward pass, and more examples show nothing new
CHECKED = 8


def measure(
    *,
    workload: str,
    optimizer: str,
    lr: float | None,
    batch_size: int,
    steps: int,
    phases: int,
    probe: str,
    parts: int,
    geometries: Sequence[str],
    seed: int,
    confidence: float,
    settings: Sequence[str],
    progress: Callable[[], None],
) -> dict[str, Any]:
    """Measure the noise scale in every phase of a run of the default recipe, and return plain JSON values.

    Args:
        workload: a name, or ``package.module:function``.
        optimizer: the optimizer that trains, as ``name`` or ``name(option=value, ...)``.
        lr: learning rate; ``None`` takes the middle of the optimizer's grid.
        batch_size: examples per step.
        steps: length of the run in optimizer updates.
        phases, confidence, progress: see :func:`extensions.noise_scale.phases.measure_run`.
        probe: source of the small batches, see :data:`cbs.noise_scale.sources.SOURCES`.
        parts: number of parts that a batch is split into.
        geometries: names in :data:`cbs.noise_scale.geometries.GEOMETRIES`, ``matched`` or ``all``.
        seed: seed of weights and data.
        settings: changes of the recipe as ``key=value``, see :func:`sweeps.spec.overrides.override`.

    Raises:
        ConfigError: if a name is unknown, a value is out of its domain, or the loss becomes infinite or NaN.
    """
    options = {"parts": parts, "geometry": list(geometries)}
    config = _trial(workload, optimizer, lr, batch_size, Choice(name=probe, options=options), seed, settings)
    return measure_run(
        dataclasses.replace(config, max_steps=steps),
        workload=built(config.workload),
        phases=phases,
        confidence=confidence,
        progress=progress,
    ).to_json()


def one_step(
    *,
    workload: str,
    optimizer: str,
    lr: float | None,
    batch_size: int,
    steps: int,
    seed: int,
    confidence: float,
    settings: Sequence[str],
    from_checkpoint: Path | None = None,
) -> OneStepTest:
    """Measure what one step along the gradient saves at its best length, see :mod:`.one_step_gain`.

    The step follows a run of ``steps`` updates, possibly 0, from fresh weights or from a checkpoint. The other
    arguments are as for :func:`measure`.

    Raises:
        ConfigError: if a name is unknown, a value is out of its domain, or the loss becomes infinite or NaN.
        DataError: if ``from_checkpoint`` is not a checkpoint.
    """
    config = dataclasses.replace(
        _trial(workload, optimizer, lr, batch_size, None, seed, settings), max_steps=steps or 1
    )
    if from_checkpoint is not None:
        state: Literal["keep", "reset"] = "keep" if steps else "reset"  # a gradient step needs no optimizer state
        config = dataclasses.replace(config, parent=dataclasses.replace(parent_at(from_checkpoint), optimizer=state))
    loop = TrainingLoop(config, built(config.workload), pick(config.device, config.precision))
    with seeding.seeded(config.seed, "training"):
        if from_checkpoint is not None:
            birth.start(loop, from_checkpoint)
        for step in range(1, steps + 1):
            loop.train_step(step)
    measured = measured_step(loop, ONE_STEP_SIZES)
    if not math.isfinite(measured.loss):
        raise ConfigError(f"the loss is not finite after {steps} steps; lower the learning rate ({config.lr:g})")
    about = {
        "workload": str(config.workload),
        "optimizer": f"{config.optimizer} lr {config.lr:g}",
        "batch_size": batch_size,
        "steps": steps,
        "from_checkpoint": None if from_checkpoint is None else str(from_checkpoint),
        "example_unit": loop.workload.example_unit,
        "loss": measured.loss,
    }
    found = dataclasses.asdict(measured)
    del found["loss"]
    return one_step_test(about, **found, confidence=confidence)


def check(
    *, workload: str, optimizer: str, batch_size: int, probe: str, parts: int, seed: int, settings: Sequence[str]
) -> CheckReport:
    """Check one batch at the initial weights against a loop over its examples, see :func:`cbs.noise_scale.check`.

    Args:
        workload, optimizer, probe, parts, seed, settings: as for :func:`measure`.
        batch_size: number of examples of the batch; at most :data:`CHECKED` are used.

    Raises:
        ConfigError: if a name is unknown or a value is out of its domain.
    """
    examples = min(batch_size, CHECKED)
    config = _trial(workload, optimizer, None, examples, Choice(name=probe, options={"parts": parts}), seed, settings)
    config = dataclasses.replace(config, probe=None)
    loop = TrainingLoop(config, built(config.workload), pick(config.device, config.precision))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with device.autocast(loop.device, config.precision):
            return loop.workload.example_losses(model, batch).mean()

    batch = loop.to_device(loop.stream.next(examples))
    return NoiseScaleMeter.check(
        loop.trained, loss, batch, source=probe, parts=parts, count=lambda args, kwargs: examples
    )


def _trial(
    workload: str,
    optimizer: str,
    lr: float | None,
    batch_size: int,
    probe: Choice | None,
    seed: int,
    settings: Sequence[str],
) -> TrialConfig:
    """Return one trial of the default recipe."""
    asked = RECIPES.make("default").replace(
        optimizers=(parse_choice(optimizer),), batch_sizes=(batch_size,), seeds=(seed,), probe=probe
    )
    asked = resolve(override(asked.on(workload), settings))
    (chosen,) = asked.choices
    return asked.trial_at(Cell(chosen, batch_size, seed), middle(asked.lr_grid(chosen)) if lr is None else lr)
