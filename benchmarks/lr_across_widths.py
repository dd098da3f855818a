"""Does the best learning rate stay where it is as the model gets wider? Loss against learning rate, width by width.

Trains the embedded workload for a fixed number of examples in the standard parametrization and in muP, and prints the
best learning rate of each width: the grid point with the lowest mean validation loss, and the minimum of the parabola
in log learning rate through it and its neighbours. At width 32, the base width, both are the same model. Minutes to an
hour on one core; rows already in the table are not measured again. Not run by ``make bench``:
``python benchmarks/lr_across_widths.py --optimizer adamw --table adamw.csv --figure adamw.png``.
``--optimizer muon@spectral`` takes ``muon`` with a width rule other than its own. A table belongs to one choice of
``--context`` and ``--options``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch

from analysis.present.style import grid, log_axis, shades, style
from cbs.optimizers import OPTIMIZERS
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.target import Target
from cbs.workloads import build_workload
from sweeps.search.telescoping import vertex

BASE = 32
BATCH_SIZE = 64
WARMUP_STEPS = 10
COLUMNS = ("optimizer", "parametrization", "width", "lr", "seed", "steps", "loss")
Losses = dict[tuple[str, int], dict[float, float]]
"""(parametrization, width) -> learning rate -> mean loss over the seeds."""


def optimizer_name(text: str) -> str:
    """``name`` as it is, ``name@rule`` registered as ``name`` with that width rule."""
    name, _, rule = text.partition("@")
    if rule and text not in OPTIMIZERS:
        OPTIMIZERS.register(text)(dataclasses.replace(OPTIMIZERS[name], name=text, width_rule=rule))
    return text


def final_loss(
    optimizer: Choice, parametrization: str, width: int, lr: float, seed: int, steps: int, context: int
) -> float:
    """Validation loss after ``steps`` steps at a constant learning rate; infinite if the trial diverges."""
    options = {"width": width, "context": context, "parametrization": parametrization}
    config = TrialConfig(
        workload=Choice(name="text", options=options),
        optimizer=optimizer,
        lr=lr,
        batch_size=BATCH_SIZE,
        seed=seed,
        target=Target(metric="validation_loss", value=0.0),
        max_steps=steps,
        schedule=Schedule(warmup_examples=WARMUP_STEPS * BATCH_SIZE),
        evaluation=EvaluationPlan(growth=4.0, far_growth=4.0),
        probe=None,
    )
    result = run_trial(config, workload=build_workload(config.workload))
    last = result.evaluations[-1]
    return last.value if last.step == steps and math.isfinite(last.value) else math.inf


def measure(args: argparse.Namespace) -> list[dict[str, str]]:
    """The rows of the table, those that were missing measured and appended to it."""
    known = list(csv.DictReader(args.table.open())) if args.table.exists() else []
    done = {tuple(row[column] for column in COLUMNS[:-1]) for row in known}
    for seed, width, lr, parametrization in product(args.seeds, args.widths, args.lrs, args.parametrizations):
        if width == BASE and parametrization == "standard" and "mup" in args.parametrizations:
            continue
        key = (args.optimizer, parametrization, width, lr, seed, args.steps)
        if tuple(map(str, key)) in done:
            continue
        loss = final_loss(Choice(name=args.optimizer, options=args.options), *key[1:], args.context)
        row = dict(zip(COLUMNS, map(str, (*key, loss)), strict=True))
        with args.table.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
        print(*row.values(), flush=True)
        known.append(row)
    return [row for row in known if row["optimizer"] == args.optimizer and int(row["steps"]) == args.steps]


def means(rows: Sequence[dict[str, str]]) -> Losses:
    measured = {row["parametrization"] for row in rows}
    found: dict[tuple[str, int], dict[float, list[float]]] = {}
    for row in rows:
        width = int(row["width"])
        for parametrization in measured if width == BASE else (row["parametrization"],):
            losses = found.setdefault((parametrization, width), {})
            losses.setdefault(float(row["lr"]), []).append(float(row["loss"]))
    return {
        key: {lr: statistics.fmean(values) for lr, values in sorted(losses.items())}
        for key, losses in sorted(found.items())
    }


def optimum(losses: dict[float, float]) -> tuple[float, float, float]:
    """Best learning rate of the grid, the parabola's, and the loss at the former; NaN where it is at an edge."""
    lrs = list(losses)
    best = min(lrs, key=losses.__getitem__)
    place = lrs.index(best)
    interpolated = math.nan
    if 0 < place < len(lrs) - 1 and all(math.isfinite(losses[lr]) for lr in lrs[place - 1 : place + 2]):
        around = lrs[place - 1 : place + 2]
        interpolated = vertex(around, [losses[lr] for lr in around])
    return best, interpolated, losses[best]


def table(losses: Losses) -> str:
    lines = ["| parametrization | width | best lr of the grid | interpolated | lowest loss |", "|---|---|---|---|---|"]
    for (parametrization, width), by_lr in sorted(losses.items(), key=lambda item: (item[0][0] == "mup", item[0][1])):
        best, interpolated, loss = optimum(by_lr)
        lines.append(f"| {parametrization} | {width} | {best:.3g} | {interpolated:.2g} | {loss:.3f} |")
    return "\n".join(lines)


def draw(losses: Losses, path: Path) -> None:
    """Loss against learning rate, a panel for each parametrization; rings mark the best of the grid."""
    with style():
        figure, axes = grid(2)
        finite = [loss for by_lr in losses.values() for loss in by_lr.values() if math.isfinite(loss)]
        colours = shades(sorted({width for _, width in losses}))
        lrs = sorted({lr for by_lr in losses.values() for lr in by_lr})
        for panel, (parametrization, title) in zip(axes, (("standard", "standard"), ("mup", "muP")), strict=True):
            panel.set(title=title, xlabel="learning rate", ylabel="validation loss (nats/byte)", xscale="log")
            panel.set_ylim(min(finite) - 0.06, max(finite) + 0.06)
            panel.set_xlim(lrs[0] / 1.2, lrs[-1] * 1.2)
            log_axis(panel.xaxis, lrs, most=9)
            for width in sorted(width for name, width in losses if name == parametrization):
                by_lr, colour = losses[parametrization, width], colours[width]
                (line,) = panel.plot(list(by_lr), list(by_lr.values()), color=colour, marker="o", markersize=2.5)
                line.set_label(f"width {width}")
                best, _, loss = optimum(by_lr)
                panel.plot([best], [loss], marker="o", markersize=8, markerfacecolor="none", markeredgecolor=colour)
        axes[0].legend(loc="upper center", frameon=False)
        figure.savefig(path, dpi=200, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", type=optimizer_name, default="adamw")
    parser.add_argument("--options", type=json.loads, default={}, help="options of the optimizer, JSON")
    parser.add_argument("--parametrizations", nargs="+", choices=["standard", "mup"], default=["standard", "mup"])
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--lrs", type=float, nargs="+", default=[1e-3 * 2**power for power in range(7)])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--context", type=int, default=16)
    parser.add_argument("--table", type=Path, default=Path("lr_across_widths.csv"))
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    losses = means(measure(args))
    print(table(losses))
    if args.figure:
        draw(losses, args.figure)


if __name__ == "__main__":
    main()
