"""What a terminal of 80 columns shows: an answer in at most 15 lines, and below it the command that comes next."""

import functools
import gc
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.present import on_screen, presentation, show, write
from analysis.present.sentences import quote
from analysis.present.table import Column, Table, print_part
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.questions.compare.optimizers import compare
from analysis.read.importers import import_runs
from analysis.read.results import load
from cbs.trial.store import Store
from tests.analysis.read.importers.sources import settings, write_csv
from tests.factories import Truth, sweep

LINES, COLUMNS = 15, 80
FAST = AnalysisConfig(resamples=100)
TWO = {"adamw": Truth(noise=0.04), "merit": Truth(noise=0.04, min_steps=160.0, min_examples=9600.0)}
COMMAND = "cbs sweep --optim adamw --optim merit --batch-sizes 2..256 --seeds 2 -o {}"

QUESTIONS: dict[str, Callable[[Path], Any]] = {
    "analyze": lambda folder: analyze(folder, FAST),
    "harder": lambda folder: analyze(folder, FAST, targets=[2.0]),
    "compare": lambda folder: compare(folder, FAST),
}


def with_command(store: Store, **changes: Any) -> None:
    manifest = store.manifest() | {"runs": [{"command": COMMAND.format(store.root)}]} | changes
    store.write_manifest({key: value for key, value in manifest.items() if key != "schema_version"})


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screens") / "two"
    with_command(sweep(folder, TWO, seeds=2))
    return folder


def holds(found: Any) -> list[str]:
    """Check a screen, and return the commands below it."""
    lines = str(found).splitlines()
    commands = [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]
    answer = [line for line in lines if not line.startswith("next: ")]
    assert len(lines) <= LINES
    assert max(map(len, answer)) <= COLUMNS
    return commands


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_screen_holds_the_answer_and_names_the_next_command(two: Path, question: str) -> None:
    assert all(command.startswith("cbs ") for command in holds(QUESTIONS[question](two)))


def test_runs_that_no_sweep_can_extend_lead_on_to_the_next_question(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": Truth(noise=0.04)}, batch_sizes=(2, 4, 8), seeds=2)
    doubted = analyze(tmp_path, FAST)
    assert [answer.verdict for answer in doubted.answers] != [Verdict.OK]
    assert holds(doubted) == [f"cbs lr {tmp_path}"]
    (command,) = holds(analyze(tmp_path, FAST, targets=[0.1]))
    first, _, target = command.rpartition(" ")
    assert first == f"cbs analyze {tmp_path} --target"
    assert all(point.reached for point in analyze(tmp_path, FAST, targets=[float(target)]).answers[0].points)
    assert holds(compare(tmp_path, FAST, targets=[0.1])) == [f"cbs analyze {tmp_path}"]


def test_three_optimizers_are_compared_on_one_screen(tmp_path: Path) -> None:
    sweep(tmp_path, TWO | {"sgd": Truth(noise=0.04, min_examples=4e3)}, seeds=2)
    shown = str(compare(tmp_path, FAST)).splitlines()
    assert [line.split()[0] for line in shown[3:6]] == ["adamw", "merit", "sgd"]
    assert not any("--wide" in line for line in shown)


def test_a_target_harder_than_the_sweeps_names_the_sweep_that_reaches_it(two: Path) -> None:
    found = analyze(two, FAST, targets=[2.0])
    assert {answer.verdict for answer in found.answers} == {Verdict.NOT_REACHED}
    commands = presentation(found).then
    assert len(commands) == 2
    for command, name in zip(commands, TWO, strict=True):
        words = command.split()
        assert words[:2] == ["cbs", "sweep"]
        assert words[words.index("--optim") + 1] == name
        assert words[words.index("--target") + 1] == "2.0"
        assert words[words.index("--from") + 1] == str(two)
        assert words[words.index("--output") + 1] == f"{two}-at-2"
    easier = analyze(two, FAST, targets=[2.6])
    assert not any("--target" in command for command in presentation(easier).then)


MANY = {name: Truth(noise=0.05, min_examples=size) for name, size in zip(
    ("adamw", "lamb", "merit", "muon", "sgd"), (7e3, 8e3, 1e4, 1.4e4, 4e3), strict=True
)}  # fmt: skip
CROWDS: dict[str, Callable[[Path], Any]] = {
    "analyze": lambda folder: analyze(folder, FAST),
    "two targets": lambda folder: analyze(folder, FAST, targets=[2.6, 3.0]),
    "a definition": lambda folder: analyze(folder, replace(FAST, definition="pareto")),
    "compare": lambda folder: compare(folder, FAST, targets=[2.6, 3.0]),
}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screens") / "many"
    with_command(sweep(folder, MANY, seeds=2, lrs=(5e-4, 1e-3, 2e-3)))
    return folder


@functools.cache
def of_crowd(folder: Path, question: str) -> Any:
    return CROWDS[question](folder)


@pytest.mark.parametrize("question", CROWDS)
def test_five_optimizers_in_doubt_fit_a_screen_which_says_what_it_leaves_out(many: Path, question: str) -> None:
    found = of_crowd(many, question)
    assert len(holds(found)) <= 1
    assert str(found).splitlines()[1:].count("") == 0
    wide, everything = io.StringIO(), presentation(found)
    show(found, Console(width=COLUMNS, file=wide), wide=True)
    assert "--wide shows the rest" not in wide.getvalue()
    assert all(f"next: {command}" in wide.getvalue() for command in everything.then)
    rows = sum(len(part.rows) for part in everything.shown if not isinstance(part, str))
    if rows > 8:
        assert " rows" in str(found)


def test_verdicts_that_a_screen_leaves_out_are_counted() -> None:
    """Whatever stands against an answer is on the screen: in its row, or counted below."""
    told = ["ok", "ok", "ok", *["above the measured batch sizes"] * 4, *["ok"] * 5, *["too few seeds"] * 8]
    columns = (Column("", "name", "name", name=True), Column("verdict", heading="verdict", left=True))
    rows = [{"name": f"row {place}", "verdict": verdict} for place, verdict in enumerate(told)]
    table = Table(columns=columns, rows=rows, title="Names", lines=["first " * 25, "second"])
    for width in (40, 80):
        console = Console(width=width, file=io.StringIO())
        parts, then = on_screen([table], ["cbs a"], console)
        assert isinstance(parts[0], Table)
        assert isinstance(parts[-1], str)
        hidden = told[len(parts[0].rows) :]
        said = {words.rpartition(": ")[0]: int(words.rpartition(": ")[2]) for words in
                parts[-1].partition("(")[2].partition(")")[0].split(", ")}  # fmt: skip
        assert said == {text: hidden.count(text) for text in told if text != "ok" and text in hidden}
        assert f": {len(hidden)} rows (" in parts[-1]
        for part in parts:
            print_part(part, console)
        assert len(console.file.getvalue().splitlines()) + len(then) <= LINES  # type: ignore[attr-defined]
    fine = replace(table, rows=[row | {"verdict": "ok"} for row in rows])
    assert "(" not in str(on_screen([fine], ["cbs a"], console)[0][-1])


def test_files_hold_what_a_screen_leaves_out(many: Path, tmp_path: Path) -> None:
    found = of_crowd(many, "two targets")
    assert "--wide shows the rest" in str(found)
    write(found, tmp_path, figures=None)
    assert len(pd.read_csv(tmp_path / "summary.csv")) == len(found.answers) == 10
    assert len(found.to_json()["fits"]) == 10


def test_what_may_be_quoted_of_every_answer_has_its_numbers_with_wide(many: Path) -> None:
    analyzed = of_crowd(many, "analyze")
    for found in (analyzed, compare(many, FAST)):
        wide = io.StringIO()
        show(found, Console(width=400, file=wide), wide=True)
        for answer in analyzed.answers:
            assert answer.verdict is not Verdict.OK
            name, text = answer.group.optimizer, quote(answer)
            lines = [line for line in wide.getvalue().splitlines() if text[1:] in line]
            assert any(name in line for line in lines), (name, text)


def calls(work: Callable[[], Any]) -> int:
    """Calls of functions, of Python and of C, by the thread that does the work."""
    count = 0

    def profile(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

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
    return 0 < large - middle <= 1.01 * (middle - small)


@pytest.mark.parametrize("curves", [False, True])
def test_the_work_per_run_does_not_grow(tmp_path: Path, curves: bool) -> None:
    imports, loads = [], []
    for runs in (6, 12, 18, 24):
        table, out = source(tmp_path, runs, curves=curves), tmp_path / f"out{runs}"
        imports.append(calls(functools.partial(import_runs, [table], out, settings(metric="loss", target=3.0))))
        loads.append(calls(functools.partial(load, out)))
    assert grows_no_faster(imports), imports
    assert grows_no_faster(loads), loads
