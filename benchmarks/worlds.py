"""Fits in worlds of known truth: how often the interval holds it, and how often a wrong answer calls itself ok.

Every table of :mod:`benchmarks.world_data` goes through ``fit_table``, at 1 and 3 seeds. An open end of an interval
counts as 0 or infinity. A silent error is an answer with the verdict ``ok`` whose interval of the critical batch size
does not hold the truth; of ratios, two optimizers that are both ``ok`` and whose ratio of critical batch sizes has an
interval that does not. A sweep that raises is counted, and its first message shown. Run as
``python -m benchmarks.worlds``; 200 sweeps a cell take minutes per core.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.fit_table import fit_table
from analysis.estimate.result import Answer
from analysis.questions.compare.ratios import critical_pair
from benchmarks.world_data import WORLDS, Truth, World, noisy_quadratic, sweep

SEEDS = (1, 3)
SILENT = 0.05
COVERAGE = (0.92, 0.98)
Task = tuple[str, int, int, int]
"""World, seeds, index of the sweep, resamples."""


def fit(task: Task) -> list[dict[str, Any]]:
    """One record per optimizer of a sweep; one with the key ``error`` where it raised."""
    name, seeds, index, resamples = task
    about = {"world": name, "seeds": seeds, "sweep": index}
    try:
        table, truths = sweep(WORLDS[name], seeds, index)
        start = time.process_time()
        answers = fit_table(table, AnalysisConfig(resamples=resamples)).answers
        seconds = (time.process_time() - start) / len(answers)
        about |= {"seconds": seconds, "ratio_silent": _ratio_silent(answers, list(truths.values()))}
        return [about | record(answer, truth) for answer, truth in zip(answers, truths.values(), strict=True)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and shown
        return [about | {"error": f"{type(error).__name__}: {error}"}]


def record(answer: Answer, truth: Truth) -> dict[str, Any]:
    critical, min_steps = answer.interval, answer.min_steps.interval
    return {
        "truth": truth.critical,
        "estimate": answer.critical_batch_size,
        "interval": list(critical),
        "covered": _holds(critical, truth.critical),
        "min_steps_truth": truth.min_steps,
        "min_steps": answer.min_steps.value,
        "min_steps_interval": list(min_steps),
        "min_steps_covered": _holds(min_steps, truth.min_steps),
        "exponent": answer.exponent.value,
        "verdict": str(answer.verdict),
    }


def _ratio_silent(answers: Sequence[Answer], truths: Sequence[Truth]) -> bool | None:
    """Whether two optimizers are both ``ok`` and the interval of the ratio of their critical batch sizes is wrong."""
    if len(answers) != 2:
        return None
    held = _holds(critical_pair(*answers).interval, truths[0].critical / truths[1].critical)
    return all(answer.verdict is Verdict.OK for answer in answers) and not held


def _holds(ends: tuple[float | None, float | None], truth: float) -> bool:
    low, high = ends
    return (low is None or low <= truth) and (high is None or truth <= high)


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a row of the table shows; shares are of the answers, ``None`` where there is nothing to count."""
    answers = [entry for entry in records if "error" not in entry]
    errors = [entry["error"] for entry in records if "error" in entry]
    closed = [entry["interval"] for entry in answers if all(entry["interval"])]
    exponents = [entry["exponent"] for entry in answers if entry["exponent"] is not None]
    valued = [entry["estimate"] / entry["truth"] for entry in answers if entry["estimate"] is not None]
    return {
        "coverage": _share(entry["covered"] for entry in answers),
        "silent": _share(entry["verdict"] == "ok" and not entry["covered"] for entry in answers),
        "ratio_silent": _share(entry["ratio_silent"] for entry in answers if entry["ratio_silent"] is not None),
        "ok": _share(entry["verdict"] == "ok" for entry in answers),
        "half_width": median(math.log(high / low) / 2 for low, high in closed) if closed else None,
        "open": _share(not all(entry["interval"]) for entry in answers),
        "ratio": median(valued) if valued else None,
        "no_value": _share(entry["estimate"] is None for entry in answers),
        "exponent": median(exponents) if exponents else None,
        "min_steps_coverage": _share(entry["min_steps_covered"] for entry in answers),
        "milliseconds": 1000 * median(entry["seconds"] for entry in answers) if answers else None,
        "failed": len(errors),
        "errors": dict(Counter(errors)),
        "verdicts": dict(Counter(entry["verdict"] for entry in answers)),
    }


def _share(hits: Iterable[bool]) -> float | None:
    found = list(hits)
    return sum(found) / len(found) if found else None


HEADINGS = (
    "world", "seeds", "coverage %", "silent errors %", "of ratios %", "ok %", "half-width", "open %",
    "estimate / truth", "no value %", "exponent", "S_min coverage %", "failed", "CPU ms",
)  # fmt: skip
GOALS = (
    f"Goals: silent errors <= {100 * SILENT:g} % in every world; coverage {100 * COVERAGE[0]:g} to "
    f"{100 * COVERAGE[1]:g} % at the exponents 0.7 to 1.2; median log half-width as given in its cell. "
    "What misses its goal is **bold**."
)


def row(world: World, seeds: int, found: dict[str, Any]) -> list[str]:
    """The cells of a world; those that miss their goal bold."""
    coverage, silent, width = found["coverage"], found["silent"], found["half_width"]
    off = world.exponents and coverage is not None and not COVERAGE[0] <= coverage <= COVERAGE[1]
    goal = world.half_width
    aim = "" if goal is None else f" (<= {goal:.2f})"
    return [
        world.name,
        str(seeds),
        _percent(coverage, off),
        _percent(silent, silent is not None and silent > SILENT),
        _percent(found["ratio_silent"], (found["ratio_silent"] or 0.0) > SILENT),
        _percent(found["ok"]),
        _number(width, goal is not None and (width is None or width > goal)) + aim,
        _percent(found["open"]),
        _number(found["ratio"]),
        _percent(found["no_value"]),
        _number(found["exponent"]),
        _percent(found["min_steps_coverage"]),
        f"**{found['failed']}**" if found["failed"] else "0",
        "" if found["milliseconds"] is None else f"{found['milliseconds']:.0f}",
    ]


def _percent(share: float | None, missed: bool = False) -> str:
    return _bold("-" if share is None else f"{100 * share:.1f}", missed)


def _number(value: float | None, missed: bool = False) -> str:
    return _bold("-" if value is None else f"{value:.3f}", missed)


def _bold(text: str, missed: bool) -> str:
    return f"**{text}**" if missed else text


def measure(
    worlds: Sequence[str], *, sweeps: int, resamples: int, processes: int, seeds: Sequence[int] = SEEDS
) -> list[dict[str, Any]]:
    """All records, by world, number of seeds and sweep."""
    tasks = [(name, count, index, resamples) for name in worlds for count in seeds for index in range(sweeps)]
    if any(noisy_quadratic in WORLDS[name].curves.values() for name in worlds):
        noisy_quadratic(np.ones(1))  # tabulated once, before processes fork
    if processes == 1:
        return [entry for found in _watched(map(fit, tasks), len(tasks)) for entry in found]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return [entry for found in _watched(pool.imap(fit, tasks, chunksize=5), len(tasks)) for entry in found]


def _watched(results: Iterable[list[dict[str, Any]]], total: int) -> Iterable[list[dict[str, Any]]]:
    """The same, with the time left on standard error."""
    start = last = time.monotonic()
    for done, found in enumerate(results, start=1):
        yield found
        now = time.monotonic()
        if now - last > 2 or done == total:
            last, left = now, (now - start) / done * (total - done)
            print(f"\r{done} of {total} sweeps, {left:.0f} s left  ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds", description=__doc__.splitlines()[0])
    parser.add_argument("--group", choices=("main", "exponents", "form", "all"), default="main")
    parser.add_argument("--world", action="append", choices=list(WORLDS), metavar="NAME", help="repeatable")
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--seeds", type=int, action="append", help="repeatable; 1 and 3 if not given")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows of the table and a record of every sweep")
    options = parser.parse_args(arguments)
    names = options.world or [
        name for name, world in WORLDS.items() if options.group == "all" or getattr(world, options.group)
    ]
    seeds = options.seeds or SEEDS
    sizes = {"sweeps": options.sweeps, "resamples": options.resamples}
    records = measure(names, **sizes, processes=options.processes, seeds=seeds)
    keys = [(name, count) for name in names for count in seeds]
    parts: dict[tuple[str, int], list[dict[str, Any]]] = {key: [] for key in keys}
    for entry in records:
        parts[entry["world"], entry["seeds"]].append(entry)
    found = {key: summary(part) for key, part in parts.items()}
    print(f"{options.sweeps} sweeps a row, {options.resamples} resamples. {GOALS}\n")
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    for (name, count), shown in found.items():
        print("| " + " | ".join(row(WORLDS[name], count, shown)) + " |")
    for (name, count), shown in found.items():
        for message, times in shown["errors"].items():
            print(f"\n{name}, {count} seeds, {times} times: {message}")
    if options.json:
        rows = [{"world": name, "seeds": count, **shown} for (name, count), shown in found.items()]
        options.json.write_text(json.dumps({**sizes, "rows": rows, "records": records}, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
