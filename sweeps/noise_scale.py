"""``cbs noise-scale`` as a function: a short run of one trial, with the noise scale along it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from cbs.config import Choice
from cbs.noise_scale_run import measure_run
from sweeps.cell import Cell
from sweeps.launch import resolve
from sweeps.overrides import override
from sweeps.recipes import RECIPES
from sweeps.workload import built


def measure(
    *,
    workload: str,
    optimizer: str,
    lr: float | None,
    batch_size: int,
    steps: int,
    phases: int,
    probe: str,
    groups: int,
    geometries: Sequence[str],
    hessian_draws: int,
    seed: int,
    confidence: float,
    settings: Sequence[str],
    progress: Callable[[], None],
) -> dict[str, Any]:
    """The noise scale in every phase of a run of the default recipe, changed as asked, as plain JSON values.

    Args:
        workload: a name, or ``package.module:function``.
        optimizer: that trains.
        lr: learning rate; ``None`` takes the middle of the optimizer's grid.
        batch_size: examples per step.
        steps: length of the run, optimizer updates.
        phases, hessian_draws, confidence, progress: see :func:`cbs.noise_scale_run.measure_run`.
        probe: where the small batches come from, see :data:`cbs.noise_scale.sources.SOURCES`.
        groups: groups that a batch is split into.
        geometries: names in :data:`cbs.noise_scale.geometries.GEOMETRIES`, ``matched`` or ``all``.
        seed: of weights and data.
        settings: ``key=value`` texts, see :func:`sweeps.overrides.override`.

    Raises:
        ConfigError: if something is unknown or out of its domain, or the loss stops being finite.
    """
    asked = RECIPES["default"]().replace(
        optimizers=(Choice(name=optimizer),),
        batch_sizes=(batch_size,),
        seeds=(seed,),
        probe=Choice(name=probe, options={"groups": groups, "geometry": list(geometries)}),
    )
    asked = resolve(override(asked.on(workload), settings))
    grid = asked.lr_grid(optimizer)
    config = asked.trial(Cell(optimizer, batch_size, seed), grid[len(grid) // 2] if lr is None else lr)
    return measure_run(
        dataclasses.replace(config, max_steps=steps),
        workload=built(config.workload),
        phases=phases,
        hessian_draws=hessian_draws,
        confidence=confidence,
        progress=progress,
    ).to_json()
