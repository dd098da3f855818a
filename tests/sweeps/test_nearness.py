"""A running sweep as a person sees it: its curve, ``cbs status --watch``, and how near it has come to its target."""

import io
import math
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from analysis.formatting import DASH
from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from sweeps.folder.lock import Lock
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.ledger import LINE_SECONDS, SECONDS, watch
from sweeps.outlook.nearness import Nearness, meant_perhaps
from sweeps.outlook.progress import BAR, HEADING, WIDE, Progress, rows_of, table_lines
from sweeps.outlook.report import dry_run_lines, dry_run_report, outcome_lines, outcome_report
from sweeps.running.run import SweepRun
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep
from tests.factories import sweep
from tests.sweeps.alone import swept
from tests.sweeps.simulation import run_search, small_sweep

ACCURACY = Target(metric="accuracy", value=90, direction="above")
RISING = (0.1, 0.3, 0.62, 0.58)


def asked(target: Target = ACCURACY) -> Sweep:
    return small_sweep(optimizers=(parse_choice("adamw"),), batch_sizes=(4, 16), target=target)


def end(
    config: TrialConfig, values: tuple[float, ...], status: TrialStatus = TrialStatus.BUDGET_EXHAUSTED
) -> TrialResult:
    rows = [
        Measurement(
            step=100 * at, examples=100 * at * config.batch_size, value=value, train_loss=math.nan, lr=config.lr
        )
        for at, value in enumerate(values)
    ]
    steps = 250.0 if status is TrialStatus.REACHED else None
    return TrialResult(config=config, status=status, steps_to_target=steps, evaluations=rows, steps={}, workload=None)


@pytest.mark.parametrize(
    ("metric", "value", "direction", "values", "meant"),
    [
        ("accuracy", 90, "above", RISING, ["--target 0.9 (the values are fractions of 1)"]),
        ("accuracy", 1, "above", RISING, ["a --target below 1 (the values are fractions of 1)"]),
        ("accuracy", 100, "above", RISING, ["a --target below 1 (the values are fractions of 1)"]),
        ("accuracy", 0.9, "above", RISING, ["an easier --target or a longer budget (it came 65 % of the way)"]),
        ("score", 90, "above", (10.0, 30.0, 50.0), ["an easier --target or a longer budget (it came 50 % of the way)"]),
        ("loss", 5, "above", (4.0, 3.0, 2.5), ["another metric or below its target (it moves away from this one)"]),
        ("accuracy", 0.05, "below", RISING, ["another metric or above its target (it moves away from this one)"]),
        ("error", 0.1, "below", (92.0, 40.0, 30.0), ["--target 10 (the values are percent)"]),
        ("loss", 0.1, "below", (4.1, 2.1, 3.0), ["an easier --target or a longer budget (it came 50 % of the way)"]),
        ("loss", 1.0, "below", (4.0, 4.0, 4.0), ["another metric, as this one does not move,"]),
        ("loss", 2.0, "above", (0.9, 0.5, 0.4), [
            "a --target below 1 (the values are fractions of 1)",
            "another metric or below its target (it moves away from this one)",
        ]),
        ("loss", 1.0, "below", (), ["an easier --target or a longer budget (it came 0 % of the way)"]),
    ],
)  # fmt: skip
def test_what_was_meant_follows_from_the_values(
    metric: str, value: float, direction: str, values: tuple[float, ...], meant: list[str]
) -> None:
    found = list(meant_perhaps(Target(metric=metric, value=value, direction=direction), values))  # type: ignore[arg-type]
    if (metric, value) == ("loss", 2.0):
        assert found[1:] == meant[1:]
        assert "fractions of 1" in found[0]
    else:
        assert found == meant


def test_the_best_value_is_that_of_every_trial_and_stands_beside_the_target() -> None:
    search = Search(asked())
    one, other = (search.next(), search.next())
    assert one is not None
    assert other is not None
    near = Nearness(ACCURACY)
    assert near.words == "target accuracy > 90, nothing measured yet"
    near.look(math.nan)
    near.look(0.25)
    near.look(math.inf)
    near.look(0.125)
    assert near.words == "target accuracy > 90, best so far 0.25"
    assert near.doubt is None
    near.add(end(one, (0.1, 0.5), TrialStatus.DIVERGED))
    assert (near.best, near.doubt) == (0.5, None)
    near.add(end(one, RISING))
    assert near.best == 0.62
    assert near.doubt is not None
    near.add(end(other, (0.1, 91.0), TrialStatus.REACHED))
    assert (near.best, near.doubt) == (91.0, None)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_shows_the_best_value_and_says_once_what_was_meant(terminal: bool) -> None:
    screen = io.StringIO()
    progress = Progress(Console(file=screen, force_terminal=terminal, width=300, height=40), 1)
    search = Search(asked())

    def shown() -> str:
        found = screen.getvalue()
        screen.seek(0), screen.truncate()
        return found

    progress.began(search)
    for count in range(3):
        config = search.next()
        progress.update(search, {config.trial_id: {"step": 1, "value": 0.2 + count / 10}})
        assert f"target accuracy > 90, best so far {(0.2, 0.62, 0.62)[count]}" in shown()
        result = end(config, RISING)
        search.add(result)
        progress.finished(result, search)
        assert ("perhaps --target 0.9 (the values are fractions of 1) is meant" in shown()) == (count == 0)
    progress.ended(search)
    shown()
    progress.began(search)
    assert "meant" not in shown()  # not once more for what is added to a sweep
    progress.ended(search)
    shown()
    again = Progress(Console(file=screen, width=300), 1)
    again.began(search)
    assert shown().count("meant") == 1  # the same command again


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_target_that_is_passed_before_the_first_step_ends_the_sweep_at_the_first_trial(tmp_path) -> None:
    """An accuracy that is asked to be above what it starts with, or a loss with the wrong direction."""
    search, store = Search(asked(Target(metric="accuracy", value=0.05, direction="above"))), Store(tmp_path)
    store.prepare()
    store.write_manifest(merged_manifest(store, search.sweep, ""))
    run = SweepRun(search, store, 1.0)
    for status, steps, over in ((TrialStatus.BUDGET_EXHAUSTED, None, False), (TrialStatus.REACHED, 0.0, True)):
        started = run.next()
        found = end(started[0], (0.1, 0.2), status)
        store.save(found.replace(steps_to_target=steps, steps={"step": np.arange(100)}))
        run.take_in(started[0], {"status": str(status)})
        assert run.over == over
    assert run.fatal is not None
    assert not run.again
    assert "before the first step (trial adamw-b4" in run.fatal
    assert "0.1): choose a harder target, or check its direction: perhaps values below it are better" in run.fatal
    with pytest.raises(ConfigError, match="choose a harder target"):
        swept(search.sweep, tmp_path)


@pytest.mark.parametrize("answers", [["FAILED"] * 3, ["BUDGET_EXHAUSTED", *["FAILED"] * 4]])
@pytest.mark.parametrize("workload", ["command", "noisy_quadratic"])
def test_a_program_whose_first_three_trials_fail_without_a_value_ends_the_sweep(
    tmp_path: Path, answers: list[str], workload: str
) -> None:
    """One that measured something, or a workload of ours, goes on: other trials may be well."""
    search = Search(asked().replace(workload=Choice(name=workload)))
    run, store = SweepRun(search, Store(tmp_path), 1.0), Store(tmp_path)
    store.prepare()
    over = []
    for status in answers:
        started = run.next()
        assert started is not None
        if status == "FAILED":
            run.take_in(started[0], {"status": status, "message": "it logged nothing"})
        else:
            store.save(end(started[0], RISING).replace(steps={"step": np.arange(100)}))
            run.take_in(started[0], {"status": status})
        over.append(run.over)
    ends = workload == "command" and len(answers) == 3
    assert over == [*[False] * (len(answers) - 1), ends]
    assert run.fatal == ("the first 3 trials failed and logged nothing: it logged nothing" if ends else None)


def row(batch_size: int, amount: float | None, *, of: str = "steps", optimizer: str = "adamw") -> dict[str, object]:
    about = {"optimizer": optimizer, "batch_size": batch_size, "amount": amount, "of": of}
    return about | {"best_lr": None if amount is None else 0.01, "done": 3, "planned": 4}


def test_the_table_has_a_line_per_batch_size_with_what_is_known() -> None:
    heading, _, *lines, said = table_lines([row(1, 1000.0), row(10, 500.0), row(100, None)], 80)
    assert heading.split() == ["optimizer", "batch", "best", "LR", "steps", "trials", *HEADING.split()]
    assert lines[0].split() == ["adamw", "1", "0.01", "1,000", "3/4", "=" * BAR]
    assert lines[2].split() == ["adamw", "100", DASH, DASH, "3/4"]
    assert said.startswith("| marks perfect scaling")
    assert table_lines([], 80) == []


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
    _, heading, _, *lines = outcome_lines(report)[:9]
    assert heading.split() == ["optimizer", "batch", "best", "LR", "LRs", "tried", "steps"]  # and no note on any
    assert len({line.index(f" {size} ") + len(str(size)) for line, size in zip(lines, (4, 16) * 3, strict=True)}) == 1
    assert [line.split()[0] for line in lines] == [label for label in LABELS for _ in range(2)]
    for study, line in zip(report["studies"], lines, strict=True):
        cell = study["batch_size"], study["optimizer"]
        trials = [t for t in report["trials"] if (t["batch_size"], search.sweep.axes.labels[t["optimizer"]]) == cell]
        lrs = [trial["lr"] for trial in trials]
        assert f" {min(lrs):.3g} to {max(lrs):.3g} " in line
        assert ("(edge)" in line) == study["at_grid_edge"]


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
