"""Calibrate: ``python -m benchmarks.calibration --output FOLDER``, or ``make calibrate``.

Works out the truth, runs replicate after replicate of every case, measures gradients along runs, and writes tables and
figures. Everything found is a file in the folder, so the same command goes on where an earlier one stopped. With
``--page docs/calibration.md`` its tables and figures are made anew.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.calibration.cases import CASES, Case
from benchmarks.calibration.gradients import gradients
from benchmarks.calibration.page import draw, fill, read, tables
from benchmarks.calibration.replicates import GRIDS, SharedStream, replicate, shared_workload
from benchmarks.calibration.truth import Truth, truth_of
from cbs.files import atomic_file

Task = tuple[str, str, int]  # Grid, case and number of a replicate


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where everything is kept")
    parser.add_argument("--replicates", type=int, default=60, help="of every case with the fine grid")
    parser.add_argument("--default-replicates", type=int, default=20, help="with the default search")
    parser.add_argument("--gradients", type=int, default=20, metavar="RUNS", help="of every source")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="whose tables and figures are written anew; all tables are in tables.md of the folder",
    )
    parser.add_argument("--case", action="append", choices=list(CASES), metavar="NAME", help="repeatable")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    names, folder = options.case or list(CASES), options.output
    truths = {name: prepared(CASES[name], folder, options.gradients) for name in names}
    for task in watched(folder, tasks(names, options.replicates, options.default_replicates)):
        kept(file_of(folder, task), functools.partial(run, task, truths[task[1]]))
    found = read(options.output)
    parts = tables(found)
    everything = "\n".join(f"{name}\n\n{text}" for name, text in parts.items())
    (options.output / "tables.md").write_text(everything)
    if options.page is None:
        print(everything)
        return
    page = options.page.read_text()
    options.page.write_text(fill(page, {name: text for name, text in parts.items() if f"<!-- {name} -->" in page}))
    draw(found, options.page.parent / "figures")


def prepared(case: Case, folder: Path, runs: int) -> Truth:
    """The truth of a case, and what is made without replicates: gradients."""

    def part(name: str, make: Callable[[], Any]) -> Any:
        return kept(folder / f"{name}-{case.name}.json", make)

    truth = Truth.from_json(part("truth", lambda: truth_of(case).to_json()))
    part("gradients", lambda: gradients(case, truth, runs))
    return truth


def run(task: Task, truth: Truth) -> dict[str, Any]:
    """One replicate, its trials in memory where the machine has a folder for that."""
    grid, name, index = task
    case = CASES[name]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        return replicate(case, grid, truth, index, Path(folder) / "sweep", examples_of(case.dimension, index))


@functools.lru_cache(maxsize=1)
def examples_of(dimension: int, index: int) -> SharedStream:
    """Those of a replicate, kept while cases of one dimension take turns."""
    return shared_workload(next(case for case in CASES.values() if case.dimension == dimension))


def tasks(names: Sequence[str], fine: int, default: int) -> list[Task]:
    """All replicates, in turns, so that whatever is done of them can be looked at."""
    found = []
    for index in range(max(fine, default)):
        for grid, count in zip(GRIDS, (fine, default), strict=True):
            # default searches after every ninth of the fine ones, and what is left of them at the end
            due = index if grid == "fine" else index // 9 if index % 9 == 8 else count
            found += [(grid, name, due) for name in names if due < count]
    left = [("default", name, index) for index in range(default) for name in names]
    return list(dict.fromkeys(found + left))


def file_of(folder: Path, task: Task) -> Path:
    grid, name, index = task
    return folder / grid / f"{name}-{index:03d}.json"


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What the file holds; made and written if there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        found = make()
        with atomic_file(path) as draft:
            Path(draft).write_text(json.dumps(found, allow_nan=False) + "\n")
    return json.loads(path.read_text())


def watched(folder: Path, todo: Sequence[Task]) -> Iterator[Task]:
    """Those that are missing, with the time left on standard error."""
    missing = [task for task in todo if not file_of(folder, task).exists()]
    start = time.monotonic()
    for done, task in enumerate(missing):
        left = f", {(time.monotonic() - start) / done * (len(missing) - done) / 60:.0f} min left" if done else ""
        print(f"\r{done} of {len(missing)} replicates{left}    ", end="", file=sys.stderr, flush=True)
        yield task
    print(f"\r{len(missing)} of {len(missing)} replicates" + " " * 20, file=sys.stderr)


if __name__ == "__main__":
    main()
