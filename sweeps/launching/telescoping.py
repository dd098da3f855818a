"""``cbs sweep --telescope``: the stages of :mod:`sweeps.search.telescoping` as sweeps, and what they found."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cbs.errors import ConfigError
from cbs.files import whole_file
from cbs.optimizers.widths import HasWidths
from cbs.trial.config import Choice
from sweeps.launching import launch
from sweeps.outlook.progress import Progress
from sweeps.running.cluster import Resources
from sweeps.search.telescoping import POINTS, Telescoped, check_widths, first_grid
from sweeps.search.telescoping import telescope as plan
from sweeps.spec.cell import Study
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built

TABLE = "telescope.json"

NO_LAW = (
    "drift: no law across widths is fitted; at most three have a grid, and two parameters through three optima say "
    "nothing of their error"
)


def check_alone(*, adding: bool, axes: bool) -> None:
    """Refuse flags that do not go with widths.

    Args:
        adding: whether trials are to be added, or limited in time or examples.
        axes: whether something else than a grid of learning rates is to be searched.

    Raises:
        ConfigError: naming the flags to leave out.
    """
    if adding:
        raise ConfigError(
            "--telescope looks for learning rates, not for B_crit, in a given number of trials: leave it out, or "
            "--precision, --auto, --max-time and --max-examples"
        )
    if axes:
        raise ConfigError("--telescope carries learning rates alone, on grids: leave out --axis and --from")


def stages(sweep: Sweep, widths: Sequence[int]) -> dict[int, Sweep]:
    """The sweep at each width of its workload, each checked as :func:`sweeps.launching.launch.resolve` does.

    Raises:
        ConfigError: if the widths do not increase, or the learning rates of the model do not follow them as in muP.
    """
    check_widths(widths)
    if len(sweep.axes().get("batch_schedules", ())):
        raise ConfigError("learning rates telescope at a constant batch size; leave --schedule or --telescope out")
    found, ratios = {}, set()
    for width in widths:
        workload = Choice(name=sweep.workload.name, options={**sweep.workload.options, "width": width})
        found[width] = launch.resolve(sweep.replace(workload=workload, expected=None))
        model = built(workload).build_model()
        ratios.add(
            frozenset(entry.ratio for entry in model.widths().values()) if isinstance(model, HasWidths) else None
        )
    if len(ratios) < len(found):
        raise ConfigError(
            "learning rates telescope across widths in muP: --set workload.parametrization=mup, or a model of your own "
            "with a method widths()"
        )
    return found


def telescope(
    sweep: Sweep,
    widths: Sequence[int],
    output: Path,
    *,
    resources: Resources | None = None,
    progress: Progress | None = None,
    command: str = "",
    trackers: Sequence[str] = (),
) -> dict[str, Any]:
    """Find the best learning rate of every optimizer and batch size at every width, and write :data:`TABLE`.

    Args:
        sweep: the sweep, its target resolved. Its learning rates are the grid of the first width; ``None`` for the
            optimizer's own.
        widths: increasing; values of the workload's option ``width``.
        output: gets a folder ``width-N`` for each width, which is a sweep like any other.
        resources: see :func:`sweeps.launching.launch.sweep`.
        progress: likewise.
        command: likewise.
        trackers: likewise.

    Returns:
        What the file holds; see :func:`report`.

    Raises:
        CbsError: as :func:`stages`, :func:`sweeps.launching.launch.sweep` and
        :func:`sweeps.search.telescoping.telescope` do.
    """
    at_width = stages(sweep, widths)
    found = {}
    for choice, batch_size in product(sweep.optimizers, sweep.batch_sizes):
        one = sweep.replace(optimizers=(choice,), batch_sizes=(batch_size,))
        (study,) = one.studies()

        def solve(width: int, lrs: tuple[float, ...], one: Sweep = one, study: Study = study) -> np.ndarray:
            stage = one.replace(workload=at_width[width].workload, expected=None, lrs=lrs)
            folder = output / f"width-{width}"
            done = launch.sweep(
                stage, folder, resources=resources, progress=progress, command=command, trackers=trackers
            )
            return done.table(study)

        found[study] = plan(widths, first(one, study), len(sweep.seeds), solve)
    told = report(found, sweep, output)
    with whole_file(output / TABLE) as draft:
        draft.write_text(json.dumps(told, indent=2, allow_nan=False) + "\n")
    return told


def first(sweep: Sweep, study: Study) -> tuple[float, ...]:
    """Learning rates of the first width."""
    return sweep.lrs or first_grid(sweep.lr_grid(study.optimizer))


def planned(sweep: Sweep, widths: Sequence[int], output: Path) -> dict[str, Any]:
    """What ``--dry-run`` says: widths, learning rates of the first, trials if no grid has to grow."""
    stages(sweep, widths)
    grids = {study: first(sweep, study) for study in sweep.studies()}
    later = sum(POINTS[min(place, len(POINTS) - 1)] for place in range(1, len(widths)))
    return {
        "output": str(output),
        "widths": list(widths),
        "lrs": {study.optimizer: list(lrs) for study, lrs in grids.items()},
        "trials": sum(len(lrs) + later for lrs in grids.values()) * len(sweep.seeds),
    }


def planned_lines(told: dict[str, Any]) -> list[str]:
    """:func:`planned` for a person."""
    grids = [f"{name:<13} starts from {' '.join(f'{lr:g}' for lr in lrs)}" for name, lrs in told["lrs"].items()]
    widths = " ".join(map(str, told["widths"]))
    return [
        f"output        {told['output']}",
        f"widths        {widths}",
        *grids,
        f"trials        {told['trials']}, more where the best learning rate is at the edge of a grid",
    ]


def report(found: dict[Study, Telescoped], sweep: Sweep, output: Path) -> dict[str, Any]:
    """Stages and cost of every optimizer and batch size, as plain JSON values.

    ``steps`` is null where a seed missed the target.
    """
    studies = []
    for study, telescoped in found.items():
        studies.append(
            {
                "optimizer": study.optimizer,
                "batch_size": study.batch_size,
                "stages": [
                    {
                        "width": stage.width,
                        "lrs": list(stage.lrs),
                        "steps": [value if math.isfinite(value) else None for value in stage.steps],
                        "best_lr": stage.best_lr,
                        "optimum": stage.optimum,
                        "tuned": stage.tuned,
                        "at_grid_edge": stage.at_grid_edge,
                    }
                    for stage in telescoped.stages
                ],
                "trials": telescoped.trials,
                "full_grid_trials": telescoped.full_grid_trials,
            }
        )
    return {"output": str(output), "target": str(sweep.target), "studies": studies}


def report_lines(told: dict[str, Any]) -> list[str]:
    """:func:`report` for a person."""
    lines = []
    for study in told["studies"]:
        lines.append(f"{study['optimizer']}, batch size {study['batch_size']}, to {told['target']}")
        lines.append(f"{'width':>7}{'tried':>7}{'best LR':>11}{'optimum':>11}{'steps':>8}")
        for stage in study["stages"]:
            steps = stage["steps"][stage["lrs"].index(stage["best_lr"])]
            lines.append(
                f"{stage['width']:>7}{len(stage['lrs']):>7}{stage['best_lr']:>11.4g}{stage['optimum']:>11.4g}"
                f"{'-' if steps is None else format(steps, '.0f'):>8}"
                + ("" if stage["tuned"] else "  carried over")
                + ("  LR at the edge of the grid" if stage["at_grid_edge"] else "")
            )
        lines.append(NO_LAW)
        lines.append(
            f"trials: {study['trials']}; grids as wide and as fine at every width: {study['full_grid_trials']}"
        )
    return [*lines, f"next: cbs analyze {told['output']}/width-N, for any of the widths"]
