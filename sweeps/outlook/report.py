"""What ``cbs sweep`` reports before (``--dry-run``) and after a sweep, as plain JSON values and as lines of text."""

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.command_options import console
from analysis.formatting import duration, number
from cbs.files import atomic_file
from cbs.trial.config import ENDLESS
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import MANIFEST, Store
from sweeps.outlook.cost import Cost
from sweeps.outlook.nearness import Nearness
from sweeps.outlook.price import (
    PEAK,
    UTILISATION,
    accelerator_hours,
    model_of,
    on_processor,
    price_lines,
    price_report,
    training_flops,
)
from sweeps.outlook.remaining import START, outlook
from sweeps.search.search import Limits, Search
from sweeps.spec.axes import Cell, StudyKey
from sweeps.spec.spec import Sweep

PLAN = "plan.jsonl"
"""File in the folder of a sweep with one line for every requested trial and the reason for it."""


def dry_run_report(
    sweep: Sweep,
    folder: Path,
    cost: Cost | None,
    workers: int,
    gpu_hour: float | None = None,
    goal: float | None = None,
) -> dict[str, Any]:
    """Return trials, examples and time of what is missing, by simulating the search (:mod:`sweeps.outlook.remaining`),
    and the price of an answer (:mod:`sweeps.outlook.price`).

    Args:
        sweep: the sweep, with its target resolved.
        folder: its folder.
        cost: measured cost of its steps; ``None`` if trials run elsewhere.
        workers: number of trials at a time; 0 if only the cluster knows it.
        gpu_hour: dollars for an hour of a GPU; ``None`` if not given.
        goal: half-width that is sought, see :func:`sweeps.outlook.price.price_report`.
    """
    store = Store(folder)
    finished = [r for r in store.results() if r.status.final] if (folder / MANIFEST).exists() else []
    search = Search(sweep, finished)
    expected, played = outlook(sweep, finished, cost, workers)
    first = [config.trial_id for config in iter(search.next, None)]  # in the order in which they start
    left = [result.config for result in played.results]
    price = price_report(search, cost, workers, gpu_hour, goal)
    timed = cost is not None and bool(cost.steps)
    why = {row["trial"]: row for row in reasons(search)}
    endless = bool(left) and not finished and sweep.expected is None and sweep.max_steps >= ENDLESS
    return {
        "output": str(folder),
        "target": sweep.aim,
        "budgets": list(sweep.budgets),
        "unmet": sweep.unmet,
        "axes": sweep.axes.to_json(),
        "lrs": {
            label: sorted({c.lr for c in left if Cell.of(c).optimizer == text})
            for text, label in sweep.axes.labels.items()
        },
        "trials_done": search.all_counts()[0],
        "trials": len(left),
        "first": [why[trial] for trial in first],
        "expected": [row for row in reasons(expected) if row["trial"] not in first and row["status"] is None],
        "may_grow": not sweep.exhaustive,
        "examples": None if endless else round(played.examples),
        "workers": max(workers, 1),
        "seconds": played.seconds + (START if left else 0.0) if timed else None,
        "compute": None if timed or endless or on_processor(search, cost) else _compute(search, cost, played.examples),
        "extrapolated": [] if cost is None else list(cost.told),
        "typical": sweep.expected is not None or bool(finished),
        "price": price,
    }


def dry_run_lines(report: dict[str, Any]) -> list[str]:
    """Return the lines to print for :func:`dry_run_report`."""
    axes = report["axes"]
    lines = [
        f"output        {report['output']}",
        f"target        {report['target']}"
        if not report["budgets"]
        else f"budget        {' '.join(f'{value:,}' for value in report['budgets'])} examples",
        f"batch sizes   {_listed(axes['batch_sizes'])}",
        f"seeds         {_listed(axes['seeds'])}",
    ]
    if report["unmet"]:
        lines.append(_unmet_line(report["unmet"]))
    across = max(13, *map(len, report["lrs"]))
    for name, lrs in report["lrs"].items():
        about = "about " if report["may_grow"] else ""
        grows = ", extended until the best is interior" if report["may_grow"] else ""
        span = f"{lrs[0]:g} to {lrs[-1]:g}" if report["may_grow"] and len(lrs) > 1 else _listed(lrs)
        left = f"learning rates {about}{span}{grows}" if lrs else "nothing left to run"
        lines.append(f"{name:<{across}} {left}")
    basis = "typical steps to target" if report["typical"] else "at most, if no trial reaches the target"
    basis = "every trial to its budget" if report["budgets"] else basis
    about = "about " if report["may_grow"] and report["trials"] else ""
    lines.append(f"trials        {about}{report['trials']} to run, {report['trials_done']} done")
    for row in report["first"][:1]:
        where = f"batch size {row['batch_size']}, learning rate {row['lr']:g}"
        lines.append(f"first         {row['optimizer']}, {where}: {row['why']}")
    if report["examples"] is not None:
        one = report["price"]["run"]["examples"]
        runs = f"; {number(report['examples'] / one, 2)} runs at B_crit" if one and not report["budgets"] else ""
        lines.append(f"examples      {report['examples']:,} ({basis}{runs})")
    if report["compute"] is not None:
        at = f"{UTILISATION:.0%} of {PEAK / 1e12:g} TFLOP/s"
        lines.append(
            "time          {accelerator_hours:.3g} hours of an accelerator at {at}, not timed here: 6 N D = "
            "{flops:.3g} FLOPs, N = {parameters:,} parameters, D = {tokens:.3g} tokens".format(
                at=at, **report["compute"]
            )
        )
    elif report["seconds"] is None:
        lines.append("time          unknown: no step was timed")
    else:
        lines.append(f"time          about {duration(report['seconds'])} with {report['workers']} workers ({basis})")
    lines += price_lines(report["price"])
    lines += [f"extrapolated  {note}" for note in report["extrapolated"]]
    return lines


def _compute(search: Search, cost: Cost | None, examples: float) -> dict[str, float] | None:
    """Return the expected compute of a sweep whose steps could not be timed; ``None`` if its model is unknown."""
    model = model_of(search, cost)
    if model is None:
        return None
    parameters, tokens = model[0], examples * model[1]
    flops = training_flops(parameters, tokens)
    about = {"parameters": parameters, "tokens": tokens, "flops": flops}
    return about | {"accelerator_hours": accelerator_hours(flops)}


def reasons(search: Search) -> list[dict[str, Any]]:
    """Return every trial that a search requested, study by study in the order of the requests, with the reason.

    ``status`` is null if the trial has not finished.
    """
    rows = []
    for key, study in search.studies.items():
        for (lr, seed), why in study.why.items():
            result = study.results.get((lr, seed))
            cell = Cell(key.optimizer, key.batch_size, seed)
            rows.append(_row(search.config(cell, lr).trial_id, cell, lr, why, result))
    return rows


def _row(name: str, cell: Cell, lr: float, why: str, result: TrialResult | None) -> dict[str, Any]:
    return {
        "trial": name,
        "optimizer": cell.optimizer,
        "batch_size": cell.batch_size,
        "lr": lr,
        "seed": cell.seed,
        "why": why,
        "status": None if result is None else str(result.status),
    }


def write_reasons(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the rows of :func:`reasons` to :data:`PLAN`. It is only a record; the next sweep plans from the trials."""
    with atomic_file(folder / PLAN) as draft:
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows))


def outcome_report(
    search: Search, folder: Path, further: Sequence[Search] = (), limits: Limits | None = None
) -> dict[str, Any]:
    """Return best learning rate and steps of every study, the number of trials by status, and why each trial was run.

    Args:
        search: search of the sweep.
        folder: its folder.
        further: further searches of its optimizers in the same folder; a later one has all the seeds of earlier ones if
            they share a study (:mod:`sweeps.launching.policies.precision`).
        limits: limits of the sweep; if trials are missing, the report says which limit ended it.
    """
    searches = [search, *further]
    ends: dict[str, TrialResult] = {}
    for one in searches:
        ends |= {trial.trial_id: trial for trial in one.trials()}
        for cell in one.cells():
            changed = {result.trial_id: result for result in one.settled(cell)} if one.done else {}
            ends |= changed
    statuses = Counter(str(trial.status) for trial in ends.values())
    last = {(_judged(one.sweep), key): one for one in searches for key in one.studies}
    names, studies = list(search.sweep.choices), []

    def place(key: tuple[tuple[int, str], StudyKey]) -> tuple[int, str, int, int]:
        goal, study = key
        return *goal, names.index(study.optimizer), study.batch_size

    for goal, key in sorted(last, key=place):
        one, target = last[goal, key], goal[1]
        budget, study = one.sweep.budget_judged, one.studies[key]
        best, lrs = study.best, [lr for lr, _ in study.results]
        best_amount = one.objective.amount(best[1]) if best else None
        studies.append(
            {
                "optimizer": search.sweep.axes.labels[key.optimizer],
                "batch_size": key.batch_size,
                "best_lr": best[0] if best else None,
                **({"budget": budget, "value": best_amount} if budget else {"steps_to_target": best_amount}),
                **({"target": target} if target else {}),
                "at_grid_edge": best is not None and one.sweep.axes.lr_rule is None and not study.interior,
                "lowest_lr": min(lrs, default=None),
                "highest_lr": max(lrs, default=None),
                "most_examples": max((trial.final_examples for trial in study.results.values()), default=0),
            }
        )
    rows: dict[str, dict[str, Any]] = {}
    for row in itertools.chain.from_iterable(map(reasons, searches)):
        rows.setdefault(row["trial"], row)
    for name, trial in ends.items():  # a search that began with more trials need not have asked for this one
        why = "asked for when less was known"
        rows.setdefault(name, _row(name, Cell.of(trial.config), trial.config.lr, why, trial))
    assert search.sweep.target is not None
    nearness = Nearness(search.sweep.target, ends.values(), search.sweep.budget_judged)
    failed = [f"{name}: {trial.message}" for name, trial in ends.items() if trial.status is TrialStatus.FAILED]
    return {
        "output": str(folder),
        "target": search.sweep.aim,
        "statuses": dict(statuses),
        "examples": sum(trial.final_examples for trial in ends.values()),
        "stopped": limits.reached if limits and not all(one.done for one in searches) else None,
        "studies": studies,
        "metric": search.sweep.target.metric,
        "batch_schedules": search.sweep.axes.to_json().get("batch_schedules", []),
        "further_metrics": [target.metric for target in search.sweep.trial.further_targets],
        "unmet": [dict(each) for each in dict.fromkeys(tuple(one.sweep.unmet.items()) for one in searches) if each],
        "unreached": nearness.doubt,
        "best_value": nearness.best,
        "failures": {"trials": len(failed), "first": failed[0] if failed else None},
        "trials": list(rows.values()),
    }


def _judged(sweep: Sweep) -> tuple[int, str]:
    """Return what a search was judged by if there are several budgets or targets: the budget, or the index of the
    target and its text."""
    if not sweep.trial.further_targets:
        return sweep.budget_judged or 0, ""
    return sum(target == sweep.judged for target in sweep.trial.further_targets), str(sweep.judged)


def outcome_lines(report: dict[str, Any]) -> list[str]:
    """Return the lines to print for :func:`outcome_report`."""
    lines: list[str] = []
    for (budget, target), studies in itertools.groupby(
        report["studies"], lambda study: (study.get("budget"), study.get("target") or report["target"])
    ):
        title = f"{report['metric']} after {budget:,} examples" if budget else f"Steps to {target}"
        lines += _studies(list(studies), title)
    lines += map(_unmet_line, report["unmet"])
    counts = ", ".join(f"{count} {name}" for name, count in sorted(report["statuses"].items()))
    lines.append(f"trials: {counts}")
    if report["stopped"]:
        lines.append(f"ended after {report['examples']:,} examples with trials missing: {report['stopped']}")
    failures = report["failures"]
    if failures["trials"]:
        lines.append(f"{failures['trials']} of {sum(report['statuses'].values())} trials failed: {failures['first']}")
    elif set(report["statuses"]) == {str(TrialStatus.OUT_OF_MEMORY)}:
        lines.append("no trial fits in memory: use smaller --batch-sizes, or --set micro_batch_size=...")
    elif not report["stopped"] and not any(study["best_lr"] for study in report["studies"]):
        remark = report["unreached"] or "no trial has reached the target, or used up its budget"
        best = report["best_value"]
        lines.append(remark if best is None else f"{remark}; the best value of all is {best:.6g}")
    question = "budget" if report["studies"] and "budget" in report["studies"][0] else "analyze"
    question = "schedule judge" if report["batch_schedules"] else question
    lines.append(f"next: cbs {question} {report['output']}")
    lines += [f"      cbs analyze {report['output']} --target {metric}" for metric in report["further_metrics"]]
    return lines


def _studies(studies: Sequence[dict[str, Any]], title: str) -> list[str]:
    """Return the lines of a table of studies that have one goal."""
    from analysis.present.table import Column, Table, text_lines  # late, as it imports pandas

    def best(study: dict[str, Any]) -> str:
        return f"{number(study['best_lr'])}{' (edge)' if study['at_grid_edge'] else ''}"

    def tried(study: dict[str, Any]) -> str | None:
        return None if study["lowest_lr"] is None else f"{study['lowest_lr']:.3g} to {study['highest_lr']:.3g}"

    def note(study: dict[str, Any]) -> str:
        if study["best_lr"]:
            return ""
        used = f"no trial used it up, at most {study['most_examples']:,}"
        return "not begun" if study["lowest_lr"] is None else used if "budget" in study else "no trial reached it"

    columns = (
        Column("optimizer", heading="optimizer", name=True),
        Column("batch_size", heading="batch"),
        Column("", best, "best LR"),
        Column("", tried, "LRs tried"),
        Column("steps_to_target", heading="steps", text=lambda steps: number(steps and round(steps))),
        Column("value", heading="value", text=lambda value: number(value, 5)),
        Column("", note, "note", left=True),
    )
    return text_lines(Table(columns=columns, rows=studies, title=title), console().width)


def _unmet_line(unmet: dict[int, int]) -> str:
    met = ", ".join(f"{examples:,} at batch size {size}" for size, examples in sorted(unmet.items()))
    return f"whole batches are {met}"


def _listed(values: list[Any]) -> str:
    return " ".join(f"{value:g}" for value in values)
