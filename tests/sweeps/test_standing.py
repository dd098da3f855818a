"""The curve of a running sweep as a person sees it in a terminal, and ``cbs status --watch``."""

import heapq
import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cbs.trial.config import Choice
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from sweeps.folder.lock import Lock
from sweeps.launching.ledger import LINE_SECONDS, SECONDS, ledger, watch
from sweeps.outlook import standing
from sweeps.outlook.progress import WIDE, Progress
from sweeps.outlook.standing import (
    BAR,
    DRAWS,
    ENOUGH,
    HEADING,
    Forecast,
    SweepStanding,
    TimeLeft,
    bars,
    pace,
    rows_of,
    table_lines,
)
from sweeps.search.search import Search
from sweeps.spec.axes import Axes
from sweeps.spec.cell import Cell
from sweeps.spec.spec import Sweep, prototype
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


STORED = json.loads((Path(__file__).parent / "stored_sweep.json").read_text())
SWEEP = Sweep(
    name="stored",
    trial=prototype(workload=Choice(name="text"), target=Target(metric="validation_loss", value=2.8)),
    axes=Axes(optimizers=(Choice(name="merit"), Choice(name="adamw")), batch_sizes=(2, 8, 32, 128, 512), seeds=(0, 1)),
    max_steps=1_000,
    max_examples=30_000,
)
"""The sweep whose trials are stored."""

WORKERS = 2


def replay() -> tuple[float, list[tuple[int, float, Search, dict[str, float]]]]:
    """The end of the sweep in seconds, and after every trial: how many have ended, the time, the search, and the steps
    of the running trials. Trials are those that were stored and take as long as they took."""
    trials = {(name, size, f"{lr:.6g}", seed): rest for name, size, lr, seed, *rest in STORED["trials"]}
    search, now, ends, results, states = Search(SWEEP), 0.0, [], [], []
    running: dict[str, tuple[float, float, int, TrialResult]] = {}
    while True:
        while len(running) < WORKERS and (config := search.next()) is not None:
            name = config.optimizer.name
            mine = {lr: rest for (at, size, lr, _), rest in trials.items() if (at, size) == (name, config.batch_size)}
            # a trial that was not stored ends as slow, and as late, as the one at the nearest learning rate
            _, _, *near = mine[min(mine, key=lambda lr: abs(math.log(float(lr) / config.lr)))]
            key = name, config.batch_size, f"{config.lr:.6g}", config.seed
            status, steps, last, value, length = trials.get(key, ["PRUNED", None, *near])
            rows = [
                Measurement(step=step, examples=step * config.batch_size, value=at, train_loss=at, lr=config.lr)
                for step, at in ((0, STORED["first_value"]), (last, value))
            ]
            result = TrialResult(
                config=config, status=TrialStatus(status), steps_to_target=steps, evaluations=rows, steps={},
                workload=None, timing={"seconds": length},
            )  # fmt: skip
            running[config.trial_id] = (now, length, last, result)
            heapq.heappush(ends, (now + length, config.trial_id))
        if not running:
            return now, states
        now, trial_id = heapq.heappop(ends)
        results.append(running.pop(trial_id)[-1])
        search.add(results[-1])
        taken = {key: last * (now - began) / length for key, (began, length, last, _) in running.items()}
        states.append((len(results), now, Search(SWEEP, results), taken))
        for key in running:
            config = running[key][-1].config
            states[-1][2].running[key] = next(
                (cell, lr) for cell, lr in search.running.values() if search.config(cell, lr) == config
            )


def off(every: int) -> list[tuple[int, float]]:
    """After the tenth trial and every so many: the logarithm of expected over true seconds left."""
    end, states = replay()
    assert 53 == len(STORED["trials"]) <= len(states) < 64
    found = []
    for count, now, search, taken in states[9:-1:every]:
        forecast = Forecast(WORKERS, math.inf)
        expected = [forecast(search, taken) for _ in range(DRAWS)][-1]
        assert expected is not None
        found.append((count, abs(math.log(expected.seconds / (end - now)))))
    return found


def test_the_time_left_is_within_a_factor_of_1_5_from_the_tenth_trial_on() -> None:
    assert [at for at, gap in off(21) if gap > math.log(1.5)] == []


@pytest.mark.slow
def test_it_is_so_at_every_trial() -> None:
    assert [at for at, gap in off(1) if gap > math.log(1.5)] == []


def timed(seconds_of, count: int = 12, **changes: object) -> list[TrialResult]:
    search = Search(small_sweep(**changes))
    results = list(run_search(search, workers=1, stop_after=count).values())
    return [result.replace(timing={"seconds": seconds_of(result, place)}) for place, result in enumerate(results)]


def test_the_pace_is_a_time_of_its_own_and_one_per_example_by_optimizer() -> None:
    factors = {"adamw": 1.0, "merit": 2.5}

    def seconds(result: TrialResult, _: int) -> float:
        config = result.config
        return result.final_step * (0.01 + 0.001 * config.batch_size) * factors[config.optimizer.name]

    results = timed(seconds, count=30)
    assert {result.config.optimizer.name for result in results} == set(factors)
    of, each = pace(results)
    for result in results:
        assert each + of(result.config) * result.final_step == pytest.approx(result.timing["seconds"], rel=0.35)
    results = [result for result in results if result.config.optimizer.name == "merit"]
    of, each = pace(results)
    assert each == pytest.approx(0.0, abs=1e-6)
    for result in results:
        assert of(result.config) * result.final_step == pytest.approx(result.timing["seconds"])


def test_what_every_trial_takes_whatever_its_length_is_no_part_of_a_step() -> None:
    """Evaluations: without this, what 80 steps of a large batch took was too much for 600 steps of a small one."""
    of, each = pace(timed(lambda result, place: 2.0 + result.final_step * 0.01, count=30))
    assert each == pytest.approx(2.0)
    assert of(small_sweep().trial_at(Cell("adamw", 4, 0), 1e-3)) == pytest.approx(0.01)


@pytest.mark.parametrize("seconds_of", [lambda result, _: 6.0, lambda result, _: 6.0 + 500.0 / result.final_step])
def test_where_shorter_trials_took_no_less_a_step_takes_some_time_all_the_same(seconds_of: Any) -> None:
    """As on a machine that is busy, or with the first trials of a sweep, which start together."""
    results = timed(seconds_of, count=4, batch_sizes=(16,))
    of, _ = pace(results)
    assert all(of(result.config) > 1e-3 for result in results)
    search = Search(small_sweep(batch_sizes=(16,)), results)
    assert search.next() is not None
    left = Forecast(2)(search, dict.fromkeys(search.running.keys(), 1.0))
    assert left is not None
    assert left.seconds > 0


def test_a_machine_that_has_become_slower_is_noticed() -> None:
    steady = pace(timed(lambda result, place: result.final_step * 0.01))
    alone = {"batch_sizes": (16,), "optimizers": small_sweep().axes.optimizers[:1], "seeds": (0, 1, 2, 3, 4, 5)}
    slower = pace(timed(lambda result, place: result.final_step * (0.01 if place < 4 else 0.03), count=10, **alone))
    trial = timed(lambda result, place: 1.0, count=1, **alone)[0]
    seconds = [each + of(trial.config) * trial.final_step for of, each in (steady, slower)]
    assert seconds[0] == pytest.approx(0.01 * trial.final_step)
    assert seconds[1] > 0.02 * trial.final_step, "the mean of all is 0.019"


def test_without_enough_trials_that_say_how_long_they_took_nothing_is_known() -> None:
    results = timed(lambda result, place: 1.0)
    assert pace(results[: ENOUGH - 1]) is None
    assert pace([result.replace(timing={}) for result in results]) is None
    assert pace([result.replace(timing={"seconds": "?"}) for result in results]) is None
    search = Search(small_sweep(), results[:2])
    assert Forecast(1)(search, {}) is None
    assert SweepStanding(1)(search, {})["seconds_left"] is None


def test_it_counts_down_and_is_played_again_when_a_trial_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now, plays = [1000.0], []
    monkeypatch.setattr(standing.time, "monotonic", lambda: now[0])
    real = standing.outlook
    monkeypatch.setattr(standing, "outlook", lambda *given, **more: plays.append(more["draw"]) or real(*given, **more))
    results = timed(lambda result, place: result.final_step * 0.05)
    search, forecast = Search(small_sweep(), results[:8]), Forecast(1, math.inf)
    first = [forecast(search, {}) for _ in range(DRAWS + 5)][-1]
    assert isinstance(first, TimeLeft)
    assert len(set(plays)) == len(plays) == DRAWS
    now[0] += 2.0
    assert forecast(search, {}) == TimeLeft(first.trials, first.seconds - 2.0)
    now[0] += 1e6
    late = forecast(search, {})
    assert late is not None
    assert late.seconds > 1.0, "trials that have not begun take some time"
    forecast(Search(small_sweep(), results), {})
    assert len(plays) == DRAWS + 1
    slow = Forecast(1, 1e-9)
    assert [slow(search, {}) is not None for _ in range(3)] == [True] * 3
    assert len(plays) == DRAWS + 2, "it takes no more than its share"
    eight, ten = slow(search, {}), slow(Search(small_sweep(), results[:10]), {})
    assert len(plays) == DRAWS + 2
    assert eight is not None
    assert ten is not None
    assert ten.trials == eight.trials - 2, "what has ended since the play is no longer to come"


def test_what_trials_under_way_have_done_counts() -> None:
    search = Search(small_sweep(), timed(lambda result, place: result.final_step * 0.05))
    config = search.next()
    assert config is not None
    begun, halfway = (Forecast(1)(search, {config.trial_id: steps}) for steps in (0.0, 50.0))
    assert begun is not None
    assert halfway is not None
    assert 0.5 < begun.seconds - halfway.seconds < 10.0


def test_the_lock_of_a_running_sweep_says_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest({"name": "mine"})
    search = Search(small_sweep(), timed(lambda result, place: result.final_step * 0.05))
    with Lock(store, "cbs sweep", SweepStanding(1)) as lock:
        lock.looked(search, {})
        found = ledger(store)
        assert found.seconds_left > 0
        assert found.trials_left >= found.planned - found.done
        text = "\n".join(found.lines())
        assert f"about {found.trials_left} trials and" in text
        best = list(search.studies.values())[1].best
        assert best is not None
        assert f" 16 {best[0]:>9.3g} {best[1]:>8.4g} " in text
    assert ledger(store).studies == []
