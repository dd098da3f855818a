"""The policy ``telescope(widths=16..128)``: run the stages of :mod:`extensions.scale.telescoping` as sweeps."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from cbs.errors import ConfigError
from cbs.files import atomic_file
from cbs.optimizers.widths import HasWidths
from cbs.registry.values import parse_batch_sizes
from cbs.trial.config import Choice
from extensions.scale.telescoping import POINTS, Telescoped, Telescoping, check_widths, first_grid
from sweeps.launching.launch import resolve
from sweeps.launching.policies import POLICIES, Policy, SweepReport, Underway
from sweeps.outlook.cost import Cost
from sweeps.spec.axes import StudyKey
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built, calling_theirs

TABLE = "telescope.json"

NO_LAW = (
    "drift: no law across widths is fitted: at most three widths have a grid, and two parameters fitted to three "
    "optima have no error estimate"
)


@POLICIES.register("telescope")
class Telescope(Policy):
    """Finds the best learning rate of every optimizer and batch size at every width, and writes :data:`TABLE`.

    Every width gets a folder ``width-N``, which is a sweep like any other. If the sweep lists learning rates, they are
    the grid of the first width; otherwise the optimizer's own grid is used.

    Args:
        widths: increasing values of the workload's option ``width``, or the text of a list, ``"16..128"``.
    """

    timed = False
    asked_as = "--set policy=telescope"
    excludes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("--max-time", "--max-examples"), "it runs a fixed number of trials"),
        **dict.fromkeys(("--axis", "--from"), "it tunes learning rates only, on grids"),
        **dict.fromkeys(("--budget", "--lrs RULE", "--set target.METRIC"), "it tunes learning rates to one target"),
        "--command": "it builds models of several widths itself",
        "--schedule": "it needs constant batch sizes",
    }

    def __init__(self, widths: Sequence[int] | str) -> None:
        self.widths = (
            parse_batch_sizes(widths, "widths of policy telescope") if isinstance(widths, str) else tuple(widths)
        )
        self._at_width: dict[int, Sweep] = {}
        self._studies: list[tuple[Sweep, StudyKey, Telescoping]] = []

    def next(self, underway: Underway) -> tuple[Sweep, Path] | None:
        sweep = underway.sweep
        if not underway.ran:
            with calling_theirs():
                self._at_width = stages(sweep, self.widths)
        else:
            _, study, telescoping = self._studies[-1]
            telescoping.add(underway.searches[-1].studies[study].table())
        left = [*product(sweep.axes.optimizers, sweep.axes.batch_sizes)][len(self._studies) :]
        while not self._studies or (asked := self._studies[-1][2].next()) is None:
            if not left:
                return None
            choice, batch_size = left.pop(0)
            one = sweep.replace(optimizers=(choice,), batch_sizes=(batch_size,))
            (study,) = one.studies()
            self._studies.append((one, study, Telescoping(self.widths, first(one, study))))
        width, lrs = asked
        workload = self._at_width[width].trial.workload
        stage = self._studies[-1][0].replace(workload=workload, expected=None, lrs=lrs)
        return stage, underway.folder / f"width-{width}"

    def report(self, underway: Underway) -> SweepReport:
        seeds = len(underway.sweep.axes.seeds)
        found = {study: Telescoped(stages=tuple(each.stages), seeds=seeds) for _, study, each in self._studies}
        content = report(found, underway.sweep, underway.folder)
        with atomic_file(underway.folder / TABLE) as draft:
            draft.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
        return SweepReport(content, report_lines(content))

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        with calling_theirs():
            content = planned(sweep, self.widths, folder)
        return SweepReport(content, planned_lines(content))


def first(sweep: Sweep, study: StudyKey) -> tuple[float, ...]:
    """Return the learning rates of the first width."""
    return sweep.axes.lrs or first_grid(sweep.lr_grid(study.optimizer))


def stages(sweep: Sweep, widths: Sequence[int]) -> dict[int, Sweep]:
    """Return the sweep at each width of its workload, each checked by :func:`sweeps.launching.launch.resolve`.

    Raises:
        ConfigError: if the widths do not increase, or the model does not scale learning rates with width as in muP.
    """
    check_widths(widths)
    by_width, ratios = {}, set()
    for width in widths:
        workload = Choice(name=sweep.trial.workload.name, options={**sweep.trial.workload.options, "width": width})
        by_width[width] = resolve(sweep.replace(workload=workload, expected=None))
        model = built(workload).build_model()
        ratios.add(
            frozenset(entry.ratio for entry in model.widths().values()) if isinstance(model, HasWidths) else None
        )
    if len(ratios) < len(by_width):
        raise ConfigError(
            "telescoping needs a model whose learning rates scale with width as in muP: add --set "
            "workload.parametrization=mup, or give your model a method widths()"
        )
    return by_width


def planned(sweep: Sweep, widths: Sequence[int], output: Path) -> dict[str, Any]:
    """Return what ``--dry-run`` reports: widths, learning rates of the first, and trials if no grid is extended."""
    stages(sweep, widths)
    grids = {study: first(sweep, study) for study in sweep.studies()}
    later = sum(POINTS[min(index, len(POINTS) - 1)] for index in range(1, len(widths)))
    return {
        "output": str(output),
        "widths": list(widths),
        "lrs": {study.optimizer: list(lrs) for study, lrs in grids.items()},
        "trials": sum(len(lrs) + later for lrs in grids.values()) * len(sweep.axes.seeds),
    }


def planned_lines(content: dict[str, Any]) -> list[str]:
    """Return the lines to print for :func:`planned`."""
    grids = [f"{name:<13} starts from {' '.join(f'{lr:g}' for lr in lrs)}" for name, lrs in content["lrs"].items()]
    widths = " ".join(map(str, content["widths"]))
    return [
        f"output        {content['output']}",
        f"widths        {widths}",
        *grids,
        f"trials        {content['trials']}, more where the best learning rate is at the edge of a grid",
    ]


def report(by_study: dict[StudyKey, Telescoped], sweep: Sweep, output: Path) -> dict[str, Any]:
    """Return stages and cost of every optimizer and batch size, as plain JSON values.

    An entry of ``steps`` is null if a seed missed the target.
    """
    studies = []
    for study, telescoped in by_study.items():
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


def report_lines(content: dict[str, Any]) -> list[str]:
    """Return the lines to print for :func:`report`."""
    from analysis.present.table import Column, Table, text_lines

    lines: list[str] = []
    for study in content["studies"]:
        table = Table(
            title=f"{study['optimizer']}, batch size {study['batch_size']}, to {content['target']}",
            columns=(
                Column("width", heading="width"),
                Column("", lambda stage: len(stage["lrs"]), "tried"),
                Column("best_lr", heading="best LR", text="{:.4g}".format),
                Column("optimum", heading="optimum", text="{:.4g}".format),
                Column("", lambda stage: stage["steps"][stage["lrs"].index(stage["best_lr"])], "steps", text=_whole),
                Column("", _remark, "note", left=True),
            ),
            rows=study["stages"],
            lines=(
                NO_LAW,
                f"trials: {study['trials']}; with the full grid at every width: {study['full_grid_trials']}",
            ),
        )
        lines += text_lines(table, 120)
    return [*lines, f"next: cbs analyze {content['output']}/width-N, for any of the widths"]


def _whole(steps: float | None) -> str:
    return "-" if steps is None else f"{steps:.0f}"


def _remark(stage: dict[str, Any]) -> str:
    remarks = {"carried over": not stage["tuned"], "LR at the edge of the grid": stage["at_grid_edge"]}
    return "; ".join(remark for remark, true in remarks.items() if true)
