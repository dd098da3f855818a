"""Thousands of runs: the work per run does not grow with their number, counted in calls of functions, and a figure has
no more panels than a page."""

import functools
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.present.figures import MOST_PANELS, UNASKED, FigureKind, figures_of
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.read.importers import import_runs
from analysis.read.results import load
from tests.analysis.read.importers.sources import settings, write_csv

FEW = AnalysisConfig(resamples=100)


def calls(work: Callable[[], Any]) -> int:
    """Calls of functions, of Python and of C, by the thread that does the work."""
    count = 0

    def profile(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def source(top: Path, runs: int, *, curves: bool) -> Path:
    """A table of so many runs: of each workload two batch sizes with three learning rates and a seed, by a law."""
    rows = []
    for run in range(runs):
        workload, place = divmod(run, 6)
        size, off = 16 * 2 ** (place % 2), place // 2 - 1
        facts = {"workload": f"w{workload}", "batch_size": size, "lr": 1e-3 * 2**off, "seed": 0, "optimizer": "adamw"}
        steps = 20 * (1 + 32 / size) * (1 + off**2 / 4) * (1 + 0.01 * workload)
        ends = [12 * (k + 1) for k in range(12)] if curves else [100]
        named = {"run": f"r{run}"} if curves else {}
        rows += [{**named, **facts, "step": step, "loss": 4.0 - step / steps} for step in ends]
    return write_csv(top / f"{runs}.csv", rows)


def grows_no_faster(counts: Sequence[int]) -> bool:
    """Whether the last of evenly spaced numbers of runs cost no more than those before; the first makes the caches."""
    _, small, middle, large = counts
    return 0 < large - middle <= 1.02 * (middle - small)


@pytest.mark.parametrize("curves", [False, True])
def test_the_work_per_run_does_not_grow(tmp_path: Path, curves: bool) -> None:
    imports, loads = [], []
    for runs in (6, 18, 30, 42):
        table, out = source(tmp_path, runs, curves=curves), tmp_path / f"out{runs}"
        imports.append(calls(functools.partial(import_runs, [table], out, settings(metric="loss", target=3.0))))
        loads.append(calls(functools.partial(load, out)))
    assert grows_no_faster(imports), imports
    assert grows_no_faster(loads), loads


def test_a_figure_has_no_more_panels_than_a_page_and_says_so() -> None:
    kind = FigureKind(of=object, compute=lambda _: pd.DataFrame(), draw=lambda *_: None, panel="panel")
    cut = f"{MOST_PANELS} of {MOST_PANELS + 1} panels; the CSV file of this figure has the points of all"
    for there, asked, said in (
        (MOST_PANELS, True, ""),
        (MOST_PANELS + 1, True, cut),
        (MOST_PANELS, False, ""),
        (MOST_PANELS + 1, False, cut.replace(str(MOST_PANELS), str(UNASKED), 1)),
    ):
        table = pd.DataFrame({"panel": [f"p{place}" for place in range(there)], "optimizer": "adamw"})
        figure = kind.figure(table, asked=asked)
        assert len(figure.axes) == (UNASKED if said and not asked else MOST_PANELS)
        assert figure.get_suptitle() == said


def test_of_many_groups_the_first_is_drawn_unasked_and_it_is_said(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    out, groups = tmp_path / "out", UNASKED + 1
    import_runs([source(tmp_path, 6 * groups, curves=True)], out, settings(metric="loss", target=3.0))
    found = analyze(out, FEW)
    assert len({each.name for each in figures_of(found, every=False)}) == 1
    fewer = replace(found, answers=found.answers[:UNASKED])
    assert len({each.name for each in figures_of(fewer, every=False)}) == UNASKED
    said = f"of {groups} groups of curves the first is drawn; --figures default draws all"
    code, told, _ = run("analyze", out, "--resamples", "100")
    assert (code, said in told, len(list((out / "analysis" / "figures").glob("steps-*.pdf")))) == (0, True, 1)
