"""The curve of a running sweep as a person sees it in a terminal, and ``cbs status --watch``."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from cbs.registry.choices import parse_choice
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.folder.lock import Lock
from sweeps.launching.ledger import LINE_SECONDS, SECONDS, watch
from sweeps.outlook.progress import (
    BAR,
    HEADING,
    WIDE,
    Progress,
    rows_of,
    table_lines,
)
from sweeps.outlook.report import dry_run_lines, dry_run_report, outcome_lines, outcome_report
from sweeps.search.search import Search
from tests.factories import sweep
from tests.sweeps.simulation import run_search, small_sweep


def row(batch_size: int, amount: float | None, *, of: str = "steps", optimizer: str = "adamw") -> dict[str, object]:
    about = {"optimizer": optimizer, "batch_size": batch_size, "amount": amount, "of": of}
    return about | {"best_lr": None if amount is None else 0.01, "done": 3, "planned": 4}


def test_the_table_has_a_line_per_batch_size_with_what_is_known() -> None:
    heading, *lines, said = table_lines([row(1, 1000.0), row(10, 500.0), row(100, None)])
    assert heading.split() == ["optimizer", "batch", "best", "LR", "steps", "trials", *HEADING.split()]
    assert lines[0].split() == ["adamw", "1", "0.01", "1000", "3/4", "=" * BAR]
    assert lines[2].split() == ["adamw", "100", "-", "-", "3/4"]
    assert said.startswith("| marks perfect scaling")
    assert list(table_lines([])) == []


def test_rows_are_those_of_the_search() -> None:
    search = Search(small_sweep())
    run_search(search)
    for entry, study in zip(rows_of(search), search.studies, strict=True):
        best = search.studies[study].best
        assert best is not None
        assert (entry["best_lr"], entry["amount"]) == best
        assert (entry["done"], entry["planned"]) == search.studies[study].counts
        assert entry["of"] == "steps"


@pytest.mark.parametrize("width", [WIDE - 1, WIDE])
def test_the_live_table_has_the_curve_where_there_is_room(width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, height=40, color_system=None)
    search = Search(small_sweep())
    run_search(search)
    console.print(Progress(console, 1)._picture(search))
    text = screen.getvalue()
    assert (HEADING in text) == ("==" in text) == (width >= WIDE)
    for entry in rows_of(search):
        assert f"{entry['best_lr']:.3g}" in text


@pytest.mark.parametrize(("terminal", "seconds"), [(True, SECONDS), (False, LINE_SECONDS)])
def test_watching_ends_with_the_sweep(tmp_path: Path, terminal: bool, seconds: float) -> None:
    store = sweep(tmp_path, batch_sizes=(4,), lrs=(1e-3,))
    screen, pauses = io.StringIO(), []
    lock = Lock(Store(store.root), "cbs sweep").__enter__()

    def pause(length: float) -> None:
        pauses.append(length)
        lock.beat({"done": len(pauses), "planned": 9, "running": {}, "studies": [row(4, 10.0)], "seconds_left": 70.0})
        if len(pauses) == 3:
            lock.release()

    watch(tmp_path, Console(file=screen, force_terminal=terminal, width=150, height=30), pause=pause)
    assert pauses == [seconds] * 3
    text = screen.getvalue()
    for words in ("1 of 9 planned", "2 of 9 planned", "1 min 10 s left", "=" * BAR, ": idle"):
        assert words in text


def test_the_command_prints_once_where_nothing_runs(tmp_path: Path, run) -> None:
    sweep(tmp_path, batch_sizes=(4,), lrs=(1e-3,))
    assert run("status", tmp_path, "--watch") == run("status", tmp_path)
    code, out, err = run("status", tmp_path, "--watch", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)


NAMES = ("muon", "muon(nesterov=false)", "adamw(betas=[0.9, 0.95], weight_decay=0.1)")
LABELS = ["muon", "muon(nesterov=false)", "adamw"]
SWEEP = small_sweep(optimizers=tuple(map(parse_choice, NAMES)), batch_sizes=(4, 16))


def test_the_plan_has_a_line_for_every_variant(tmp_path: Path) -> None:
    report = dry_run_report(SWEEP, tmp_path, None, 1)
    assert list(report["lrs"]) == LABELS
    assert report["axes"]["optimizers"] == list(NAMES)
    lines = [line for line in dry_run_lines(report) if "learning rates" in line]
    assert [line.partition(" learning")[0].strip() for line in lines] == LABELS
    assert len({line.index("learning") for line in lines}) == 1


def test_the_outcome_has_a_line_for_every_variant_and_batch_size(tmp_path: Path) -> None:
    search = Search(SWEEP)
    run_search(search)
    report = outcome_report(search, tmp_path)
    found = [(study["optimizer"], study["batch_size"]) for study in report["studies"]]
    assert found == [(label, size) for label in LABELS for size in (4, 16)]
    lines = outcome_lines(report)[1:7]
    assert len({line.index(f" {size} ") + len(str(size)) for line, size in zip(lines, (4, 16) * 3, strict=True)}) == 1
    assert [line.split()[0] for line in lines] == [label for label in LABELS for _ in range(2)]
    for study, line in zip(report["studies"], lines, strict=True):
        cell = study["batch_size"], study["optimizer"]
        trials = [t for t in report["trials"] if (t["batch_size"], search.sweep.axes.labels[t["optimizer"]]) == cell]
        lrs = [trial["lr"] for trial in trials]
        assert f" {min(lrs):.3g} to {max(lrs):.3g} " in line


@pytest.mark.parametrize("width", [60, 100])
def test_the_live_table_shows_whole_labels(width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, height=40, color_system=None)
    names = ["adamw(betas=[0.9, 0.95], weight_decay=0.1)", "adamw(betas=[0.9, 0.99], weight_decay=0.1)"]
    search = Search(small_sweep(optimizers=tuple(map(parse_choice, names)), batch_sizes=(4,)))
    progress = Progress(console, 1)
    console.print(progress._picture(search))
    shown = "".join(line[: width // 3] for line in screen.getvalue().splitlines()).replace(" ", "")
    for label in search.sweep.axes.labels.values():
        assert label.replace(" ", "") in shown


def test_what_a_failed_trial_says_is_no_markup() -> None:
    screen, search = io.StringIO(), Search(small_sweep(batch_sizes=(4,)))
    (result,) = run_search(search, workers=1, stop_after=1).values()
    progress = Progress(Console(file=screen, width=200), 1)
    progress.finished(result.replace(status=TrialStatus.FAILED, message="ValueError: on purpose [/red]"), search)
    progress.note("[red]")
    assert screen.getvalue() == f"FAILED {result.trial_id}: ValueError: on purpose [/red]\nnote [red]\n"


def test_the_line_says_what_is_done_and_how_long_the_planned_trials_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now, screen = [100.0], io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sweep = small_sweep(lrs=(1e-3, 2e-3), batch_sizes=(4,), seeds=(0, 1, 2))
    stored = list(run_search(Search(sweep), workers=1, stop_after=2).values())
    progress = Progress(Console(file=screen, width=200), 2)
    progress.began(Search(sweep, stored))
    progress.update(Search(sweep, stored), {})
    assert "2 trials done, 0 running, 0 s elapsed, at least 10 trials and an unknown time left" in screen.getvalue()
    now[0] += 120.0
    progress.update(Search(sweep, [result.replace(timing={"seconds": 30.0}) for result in stored]), {})
    assert "2 min 00 s elapsed, at least 10 trials and 2 min 30 s left" in screen.getvalue()
