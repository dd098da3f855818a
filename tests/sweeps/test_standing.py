"""The curve of a running sweep as a person sees it in a terminal, and ``cbs status --watch``."""

import functools
import io
import itertools
import math
from pathlib import Path

import pytest
from rich.console import Console

from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from sweeps.folder.lock import Lock
from sweeps.launching.ledger import LINE_SECONDS, SECONDS, ledger, watch
from sweeps.outlook.progress import (
    BAR,
    HEADING,
    WIDE,
    Progress,
    TimeLeft,
    bars,
    rows_of,
    standing_of,
    table_lines,
    time_left,
)
from sweeps.search.search import Search
from tests.factories import sweep
from tests.sweeps.simulation import run_search, small_sweep


def row(batch_size: int, amount: float | None, *, of: str = "steps", optimizer: str = "adamw") -> dict[str, object]:
    about = {"optimizer": optimizer, "batch_size": batch_size, "amount": amount, "of": of}
    return about | {"best_lr": None if amount is None else 0.01, "done": 3, "planned": 4}


def test_under_perfect_scaling_bars_shrink_evenly_and_hold_no_mark() -> None:
    texts = bars([row(size, 1600 / size) for size in (1, 2, 4, 8, 16)])
    lengths = [len(text) for text in texts]
    assert lengths[0] == BAR
    assert lengths[-1] == 1
    assert max(abs(a - b - (BAR - 1) / 4) for a, b in itertools.pairwise(lengths)) <= 1
    assert "|" not in "".join(texts)


def test_the_mark_stands_where_perfect_scaling_would_end() -> None:
    texts = bars([row(1, 1000.0), row(10, 500.0), row(100, None), row(1000, 100.0)])
    assert [text.find("|") for text in texts] == [-1, 10, -1, 0]  # of 16 for ln(1000): 100, of 1000 nothing is left
    assert texts[2] == ""
    assert len(texts[3]) == 1 + round((BAR - 1) * 2 / 3)


def test_a_metric_after_a_budget_has_bars_without_a_mark() -> None:
    texts = bars([row(1, 2.0, of="value"), row(10, 2.5, of="value"), row(100, 4.0, of="value")])
    assert [len(text) for text in texts] == [1, 1 + round(15 * 0.3219), BAR]
    assert "|" not in "".join(texts)
    assert bars([row(1, -1.0, of="value")]) == [""]
    assert bars([row(1, 2.0, of="value")]) == ["=" * BAR]


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


def timed(seconds_of, count: int = 12, **changes: object) -> list[TrialResult]:
    search = Search(small_sweep(**changes))
    results = list(run_search(search, workers=1, stop_after=count).values())
    return [result.replace(timing={"seconds": seconds_of(result, place)}) for place, result in enumerate(results)]


def test_trials_take_what_those_at_the_nearest_batch_size_took() -> None:
    took = {16: 8.0, 64: 2.0}
    search = Search(small_sweep(), timed(lambda result, _: took[result.config.batch_size]))
    assert {result.config.batch_size for result in search.trials()} == set(took)
    waiting = [config.batch_size for config in search.waiting()]
    assert min(waiting) == 4
    seconds = sum(took[min(took, key=lambda known, size=size: abs(math.log(known / size)))] for size in waiting)
    assert time_left(search, 1) == TimeLeft(len(waiting), pytest.approx(seconds))
    assert time_left(search, 2) == TimeLeft(len(waiting), pytest.approx(seconds / 2))
    assert time_left(search, 100 * len(waiting)) == TimeLeft(len(waiting), pytest.approx(seconds / len(waiting)))
    begun = search.next()
    assert begun is not None
    half = took[begun.batch_size] / 2
    assert time_left(search, 1) == time_left(search, 0) == TimeLeft(len(waiting), pytest.approx(seconds - half))


def test_before_a_trial_says_how_long_it_took_nothing_is_known() -> None:
    result = timed(lambda result, _: 1.0, count=1)[0]
    assert time_left(Search(small_sweep(), [result]), 1) is not None
    for unknown in ({}, {"seconds": "?"}, {"seconds": math.inf}, {"seconds": 0.0}):
        search = Search(small_sweep(), [result.replace(timing=unknown)])
        assert time_left(search, 1) is None
        assert standing_of(1, search, {})["seconds_left"] is None


def test_nothing_is_left_at_the_end() -> None:
    search = Search(small_sweep())
    ended = [result.replace(timing={"seconds": 1.0}) for result in run_search(search).values()]
    assert time_left(Search(small_sweep(), ended), 2) == TimeLeft(0, 0.0)


def test_the_lock_of_a_running_sweep_says_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest({"name": "mine"})
    search = Search(small_sweep(), timed(lambda result, place: result.final_step * 0.05))
    with Lock(store, "cbs sweep", functools.partial(standing_of, 1)) as lock:
        lock.looked(search, {})
        found = ledger(store)
        assert found.seconds_left > 0
        assert found.trials_left == found.planned - found.done
        text = "\n".join(found.lines())
        assert f"at least {found.trials_left} trials and" in text
        best = list(search.studies.values())[1].best
        assert best is not None
        assert f" 16 {best[0]:>9.3g} {best[1]:>8.4g} " in text
    assert ledger(store).studies == []
