"""Batch schedules on the embedded text beside constant batch sizes: the final loss at equal examples, and gamma.

    python benchmarks/schedules_on_text.py --figure docs/figures/schedules_on_text.png

runs ``cbs sweep`` where trials are missing (141 short ones, under a constant learning rate and under a cosine; ten
minutes of two quiet cores), ``cbs schedule judge`` at ``--target``, and prints the loss that every batch size and
schedule has after the same examples. The trials never reach the target they are run with, so that each takes its whole
budget; other targets are read from their curves. Without a decay a larger constant batch goes on beyond the examples
that are compared, and its loss is read where they are seen.

Constant batch sizes trace a curve of final loss over steps. A schedule of S steps gains where its loss lies below that
curve, read linearly in log S between two constant batch sizes, each at its best learning rate. Seeds share their data,
so the difference is taken seed by seed; its interval is Student's over seeds, which knows nothing of the choice of the
learning rate.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from analysis.phrases import with_interval
from analysis.present.style import grid, handle, label_points, looks, mark, style
from analysis.present.style.scales import log_axis
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store

EXAMPLES = {"constant_lr": 16_384, "cosine": 8192}
"""That are compared; all of a cosine's."""

COMMON = [
    "--optim", "adamw", "--target", "1", "--set", "workload.layers=1", "--set",
    "workload.validation_sequences=256", "--set", "evaluation.growth=1.08", "--set", "evaluation.far_growth=1.08",
]  # fmt: skip


def sweeps(share: float) -> dict[str, list[list[str]]]:
    """Arguments of ``cbs sweep`` by folder, with so large a share of the examples."""
    whole, cosine = (int(share * EXAMPLES[name]) for name in ("constant_lr", "cosine"))
    growing = [
        "noise_rule(price=40,cap=128,measurements=40)", f"growth(first_examples={whole // 16},cap=64)",
        "late_switch(to=64)",
    ]  # fmt: skip
    steady = ["--set", f"max_examples={whole // 2}", "--set", f"max_steps={whole // 32}"]
    falling = [
        "--set", f"max_examples={cosine - 1}", "--set", "max_steps=1", "--set", "schedule.name=cosine", "--set",
        f"schedule.decay_examples={cosine}",
    ]  # fmt: skip
    chosen = [part for name in growing for part in ("--schedule", name)]
    return {
        "constant_lr": [
            [*steady, "--lrs", "2e-3,4e-3,8e-3,1.6e-2,3.2e-2", "--batch-sizes", "16,32,64,128"],
            [*steady, "--lrs", "2e-3,4e-3,8e-3", "--batch-sizes", "16", *chosen],
        ],
        "cosine": [
            [*falling, "--lrs", "4e-3,8e-3,1.6e-2,3.2e-2", "--batch-sizes", "16,32,128"],
            [*falling, "--lrs", "4e-3,8e-3,1.6e-2", "--batch-sizes", "16,32", "--schedule", "seesaw(cap=256)"],
        ],
    }


TITLES = {"constant_lr": "constant learning rate", "cosine": "cosine to 0"}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Trials that differ in learning rate and seed alone.

    Attributes:
        choice: their batch schedule; ``None`` for a constant batch size.
        batch_size: the first.
        lrs: increasing.
        losses: after the examples that are compared, shape ``[lrs, seeds]``; infinity where a trial diverged.
        steps: that they took at the best learning rate, mean over seeds.
    """

    choice: Choice | None
    batch_size: int
    lrs: tuple[float, ...]
    losses: np.ndarray
    steps: float

    @property
    def best(self) -> int:
        """Index of the learning rate with the lowest mean loss."""
        return int(np.argmin(self.losses.mean(axis=1)))

    @property
    def final(self) -> np.ndarray:
        """At the best learning rate, shape ``[seeds]``."""
        found: np.ndarray = self.losses[self.best]
        return found

    @property
    def at_edge(self) -> bool:
        """Whether that learning rate is the lowest or the highest that was tried."""
        return self.best in (0, len(self.lrs) - 1)


def run(folder: Path, workers: int, share: float, seeds: int) -> None:
    """The sweeps; trials that are there already stay."""
    for name, parts in sweeps(share).items():
        for part in parts:
            output = ["--output", str(folder / name), "--workers", str(workers), "--seeds", str(seeds)]
            subprocess.run([sys.executable, "cli.py", "sweep", *COMMON, *part, *output], check=True)


def kinds(folder: Path, examples: float) -> list[Kind]:
    """Every batch size and schedule of a folder after so many examples, or at the end of what is shorter; constant ones
    first, in increasing order. Between two evaluations loss and steps are linear in the log of the examples."""
    trials: dict[tuple[str, int], list[tuple[float, int, float, float]]] = {}
    choices: dict[str, Choice | None] = {}
    for result in Store(folder).results():
        config, rows = result.config, result.evaluations[1:]
        key = str(config.batch_schedule or "")
        choices[key] = config.batch_schedule
        seen, values, steps = (np.array([getattr(row, name) for row in rows]) for name in ("examples", "value", "step"))
        loss, step = (float(np.interp(np.log(examples), np.log(seen), each)) for each in (values, steps))
        row = (config.lr, config.seed, loss if result.status is TrialStatus.BUDGET_EXHAUSTED else np.inf, step)
        trials.setdefault((key, config.batch_size), []).append(row)
    found = []
    for (key, size), own in sorted(trials.items()):
        lrs, seeds = sorted({row[0] for row in own}), sorted({row[1] for row in own})
        losses, took = (np.full((len(lrs), len(seeds)), np.inf) for _ in range(2))
        for lr, seed, loss, step in own:
            place = lrs.index(lr), seeds.index(seed)
            losses[place], took[place] = loss, step
        best = int(np.argmin(losses.mean(axis=1)))
        found.append(
            Kind(choice=choices[key], batch_size=size, lrs=tuple(lrs), losses=losses, steps=float(took[best].mean()))
        )
    return found


def interval(values: np.ndarray) -> tuple[float, float]:
    """Of a mean over seeds, 95 %."""
    half = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


def above_constant(kind: Kind, constant: Sequence[Kind]) -> np.ndarray:
    """How far a schedule's final loss is above that of a constant batch size of as many steps, per seed; NaN where no
    constant batch size took so few steps, or so many."""
    ordered = sorted(constant, key=lambda each: each.steps)
    at = np.log([each.steps for each in ordered])
    inside = at[0] <= np.log(kind.steps) <= at[-1]
    rivals = [np.interp(np.log(kind.steps), at, losses) for losses in np.array([each.final for each in ordered]).T]
    return np.asarray(kind.final - rivals) if inside else np.full(len(kind.final), np.nan)


def verdict(difference: tuple[float, float]) -> str:
    """In words."""
    low, high = difference
    if np.isnan(low):
        return "not known"
    return "gains" if high < 0 else "loses" if low > 0 else "no gain shown"


def named(found: Iterable[Kind]) -> list[str]:
    """What every kind is called."""
    return [f"{'constant' if each.choice is None else each.choice.name} {each.batch_size}" for each in found]


def table(found: Sequence[Kind]) -> str:
    """In Markdown."""
    constant = [each for each in found if each.choice is None]
    first = {each.batch_size: each for each in constant}
    lines = [
        "| | learning rate | steps | final loss | against its first batch size | against as many steps | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, each in zip(named(found), found, strict=True):
        loss = with_interval(float(each.final.mean()), interval(each.final))
        said = ["", "", ""]
        if each.choice is not None:
            own, rivals = first[each.batch_size], above_constant(each, constant)
            saved = f"{1 - each.steps / own.steps:.0%} fewer steps"
            said = [f"{signed(each.final - own.final)}, {saved}", signed(rivals), verdict(interval(rivals))]
        edge = " (edge)" if each.at_edge else ""
        cells = [name, f"{each.lrs[each.best]:g}{edge}", f"{each.steps:.0f}", loss, *said]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def signed(differences: np.ndarray) -> str:
    """Their mean with its interval."""
    low, high = interval(differences)
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def draw(results: dict[str, list[Kind]], path: Path, share: float = 1.0) -> None:
    """Final loss over steps at equal examples, a panel for each learning-rate schedule."""
    with style():
        figure, axes = grid(len(results))
        for panel, (name, found) in zip(axes, results.items(), strict=False):
            constant = sorted((each for each in found if each.choice is None), key=lambda each: each.steps)
            steps, losses = ([value(each) for each in constant] for value in (_steps, _loss))
            panel.plot(steps, losses, color="grey", marker="o", zorder=2)
            key = [mark("constant batch size", marker="o", linestyle="-", color="grey")]
            scheduled = [each for each in found if each.choice is not None]
            look = looks(["constant batch size", *named(scheduled)])
            for label, each in zip(named(scheduled), scheduled, strict=True):
                low, high = interval(each.final)
                panel.errorbar(
                    [each.steps], [_loss(each)], yerr=[[_loss(each) - low], [high - _loss(each)]], zorder=3,
                    color=look[label].colour, marker=look[label].marker, linestyle="none", capsize=2,
                )  # fmt: skip
                key.append(handle(label, look[label], line=False))
            everything = np.array([[_steps(each), _loss(each)] for each in found])
            panel.set(title=f"{share * EXAMPLES[name]:,.0f} sequences, {TITLES[name]}", xscale="log")
            panel.set(xlabel="steps", ylabel="final loss (nats/byte)")
            log_axis(panel.xaxis, everything[:, 0])
            names = [(_steps(each), _loss(each), f"{each.batch_size}", "grey") for each in constant]
            label_points(panel, names, everything, np.array([steps, losses]).T)
            panel.legend(handles=key, loc="upper right", frameon=False)
        figure.savefig(path, dpi=200, metadata={"Software": None})


def _steps(kind: Kind) -> float:
    return kind.steps


def _loss(kind: Kind) -> float:
    return float(kind.final.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/schedules_on_text"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the examples; 1/4 is the least, as warmup stays")
    parser.add_argument("--seeds", type=int, default=3, help="2 or more")
    parser.add_argument("--target", type=float, nargs="+", default=[2.7])
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    run(args.output, args.workers, args.share, args.seeds)
    results = {name: kinds(args.output / name, args.share * EXAMPLES[name]) for name in EXAMPLES}
    for name, found in results.items():
        print(
            f"\n{TITLES[name]}: loss after {args.share * EXAMPLES[name]:,.0f} examples\n\n{table(found)}\n", flush=True
        )
        targets = [part for value in args.target for part in ("--target", str(value))]
        folder = str(args.output / name)
        subprocess.run([sys.executable, "cli.py", "schedule", "judge", folder, *targets], check=True)
    if args.figure:
        draw(results, args.figure, args.share)


if __name__ == "__main__":
    main()
