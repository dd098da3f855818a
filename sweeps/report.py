"""What ``cbs sweep`` says before (``--dry-run``) and after a sweep, as plain JSON values and as lines of text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from cbs.lr_choice import at_edges
from cbs.store import MANIFEST, Store
from sweeps.estimate import StepCost, prior_steps
from sweeps.progress import duration
from sweeps.search import Search
from sweeps.spec import Sweep


def dry_run_report(sweep: Sweep, folder: Path, cost: StepCost | None, workers: int) -> dict[str, Any]:
    """Trials, examples and time of what is missing; an upper estimate, since pruning stops most trials early."""
    store = Store(folder)
    finished = [r for r in store.results() if r.status.final] if (folder / MANIFEST).exists() else []
    search = Search(sweep, finished)
    waiting = search.waiting()
    steps = [prior_steps(sweep, config.batch_size) for config in waiting]
    pairs = list(zip(waiting, steps, strict=True))
    seconds = None if cost is None else sum(cost.seconds(config.batch_size, count) for config, count in pairs)
    return {
        "output": str(folder),
        "target": str(sweep.target),
        "axes": sweep.axes(),
        "lrs": {
            sweep.labels[text]: sorted({c.lr for c in waiting if c.optimizer == choice})
            for text, choice in sweep.choices.items()
        },
        "trials_done": sum(search.counts(study)[0] for study in sweep.studies()),
        "trials": len(waiting),
        "may_grow": sweep.lrs is None,
        "examples": round(sum(config.batch_size * count for config, count in pairs)),
        "workers": max(workers, 1),
        "seconds": None if seconds is None else seconds / max(workers, 1),
        "typical": sweep.expected is not None,
    }


def dry_run_lines(report: dict[str, Any]) -> list[str]:
    """:func:`dry_run_report` for a person."""
    axes = report["axes"]
    lines = [
        f"output        {report['output']}",
        f"target        {report['target']}",
        f"batch sizes   {_listed(axes['batch_sizes'])}",
        f"seeds         {_listed(axes['seeds'])}",
    ]
    across = max(13, *map(len, report["lrs"]))
    for name, lrs in report["lrs"].items():
        grows = ", and on until the best is interior" if report["may_grow"] else ""
        left = f"learning rates {_listed(lrs)}{grows}" if lrs else "nothing left to run"
        lines.append(f"{name:<{across}} {left}")
    basis = "typical steps to target" if report["typical"] else "at most, if no trial reaches the target"
    lines.append(f"trials        {report['trials']} to run, {report['trials_done']} done")
    lines.append(f"examples      {report['examples']:,} ({basis})")
    if report["seconds"] is None:
        lines.append("time          unknown: steps are timed on this machine only, not on a cluster")
    else:
        lines.append(f"time          about {duration(report['seconds'])} with {report['workers']} workers ({basis})")
    return lines


def outcome_report(search: Search, folder: Path) -> dict[str, Any]:
    """Best learning rate and steps of every study, and how many trials ended how."""
    statuses: Counter[str] = Counter()
    for cell in search.cells():
        changed = {result.trial_id: result.status for result in search.settled(cell)}
        for result in search.results[cell].values():
            statuses[str(changed.get(result.trial_id, result.status))] += 1
    studies = []
    for study in search.sweep.studies():
        best, lrs = search.best(study), search.lrs(study)
        studies.append(
            {
                "optimizer": search.sweep.labels[study.optimizer],
                "batch_size": study.batch_size,
                "best_lr": best[0] if best else None,
                "steps_to_target": best[1] if best else None,
                "at_grid_edge": best is not None and any(at_edges(lrs.index(best[0]), [True] * len(lrs))),
            }
        )
    return {"output": str(folder), "target": str(search.sweep.target), "statuses": dict(statuses), "studies": studies}


def outcome_lines(report: dict[str, Any]) -> list[str]:
    """:func:`outcome_report` for a person."""
    across = max(12, *(len(study["optimizer"]) for study in report["studies"]))
    lines = [f"{'optimizer':<{across}}{'batch':>7}{'best LR':>10}{'steps':>9}  to {report['target']}"]
    for study in report["studies"]:
        steps = f"{study['steps_to_target']:.0f}" if study["steps_to_target"] else "-"
        lr = f"{study['best_lr']:.3g}" if study["best_lr"] else "-"
        edge = "  LR at the edge of the grid" if study["at_grid_edge"] else ""
        lines.append(f"{study['optimizer']:<{across}}{study['batch_size']:>7}{lr:>10}{steps:>9}{edge}")
    counts = ", ".join(f"{count} {name}" for name, count in sorted(report["statuses"].items()))
    lines.append(f"trials: {counts}")
    if not any(study["steps_to_target"] for study in report["studies"]):
        lines.append(
            "no trial reached the target: choose an easier --target, or raise --set max_steps=... and max_examples=..."
        )
    lines.append(f"next: cbs analyze {report['output']}")
    return lines


def _listed(values: list[Any]) -> str:
    return " ".join(f"{value:g}" for value in values)
