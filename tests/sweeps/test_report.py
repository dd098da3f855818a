"""What a person sees of a sweep before, while and after it runs; variants are told apart everywhere."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from cbs.registry.choices import Choice, parse_choice
from cbs.trial.record import TrialStatus
from sweeps.outlook.cost import Cost, StepCost
from sweeps.outlook.progress import Progress
from sweeps.outlook.report import dry_run_lines, dry_run_report, outcome_lines, outcome_report
from sweeps.search.search import Search
from tests.sweeps.simulation import run_search, small_sweep

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


def test_where_no_step_is_timed_the_plan_says_hours_of_an_accelerator(tmp_path: Path) -> None:
    sweep = small_sweep(workload=Choice(name="text", options={"size": "gpt2-small"}), batch_sizes=(4, 16))
    report = dry_run_report(sweep, tmp_path, None, 1)
    parameters, found = 12 * (12 * 768**2 + 13 * 768) + 2 * 768 + (1024 + 128) * 768, report["compute"]
    assert found["parameters"] == parameters
    assert found["tokens"] == pytest.approx(1024 * report["examples"], rel=1e-3)
    assert found["flops"] == 6 * parameters * found["tokens"]
    assert found["accelerator_hours"] == pytest.approx(found["flops"] / (0.4 * 989e12) / 3600)
    (line,) = (line for line in dry_run_lines(report) if line.startswith("time "))
    assert f"{found['accelerator_hours']:.3g} hours of an accelerator at 40% of 989 TFLOP/s, not timed here" in line
    assert f"N = {parameters:,} parameters" in line
    timed = Cost(steps={text: StepCost(1.0, 0.0, 0.0) for text in sweep.choices}, told=())
    assert dry_run_report(sweep, tmp_path, timed, 1)["compute"] is None
    without_tokens = dry_run_report(small_sweep(batch_sizes=(4, 16)), tmp_path, None, 1)
    assert without_tokens["compute"] is None
    assert any(line.startswith("time          unknown: ") for line in dry_run_lines(without_tokens))


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
