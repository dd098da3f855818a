"""Batch schedules in a folder of results: kept out of every curve, judged against it, and their final losses."""

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.present import presentation, to_json
from analysis.present.figures import figures_of
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.questions.compare.optimizers import compare
from analysis.read.results import load
from analysis.read.throughput import Assumed, StepTime, StepTimeTable
from cbs.errors import ResultsError
from cbs.registry.choices import parse_choice
from cbs.registry.values import parse_table
from cbs.trial.config import EvaluationPlan, TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from extensions.schedules.judge.judged import Schedules, ScheduleStanding, schedules
from extensions.schedules.losses import LossDifference, ScheduleLoss, schedule_losses
from extensions.schedules.tables import verdicts
from tests.equal_budgets import World, write
from tests.factories import Truth, curve, sweep, trial

CONFIG = AnalysisConfig(resamples=100)
TRUTH = Truth(noise=0.03)
TABLE = "0:8 2000:32"


def steps_with(gamma: float) -> float:
    """Steps of the schedule above whose gamma is so much."""

    def of(steps: float) -> float:
        examples = 2000 + 32 * (steps - 250)
        return (steps / TRUTH.min_steps - 1) * (examples / TRUTH.min_examples - 1)

    low, high = 418.2, 5000.0  # from where it has seen E_min
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < gamma else (low, middle)
    return low


def with_schedule(
    store: Store, steps: float, *, seeds: int = 3, reached: int = 3, lrs: tuple[float, ...] = (1e-3, 2e-3, 4e-3),
    choice: str = f"stages(table='{TABLE}')", noise: float = 0.03,
) -> None:  # fmt: skip
    """Add trials under a schedule to a sweep: the middle learning rate takes ``steps``, the others 10 % more."""
    config = next(store.results()).config
    starts, sizes = zip(*parse_table(TABLE), strict=True)
    rng = np.random.default_rng(5)
    for seed in range(seeds):
        factor = math.exp(noise * rng.standard_normal())
        for index, lr in enumerate(lrs):
            took = steps * factor * (1.0 if index == len(lrs) // 2 else 1.1)
            own = dataclasses.replace(
                config, lr=lr, seed=seed, batch_size=sizes[0], batch_schedule=parse_choice(choice),
                schedule=dataclasses.replace(config.schedule, warmup_examples=10 * sizes[0]), max_steps=10**6,
            )  # fmt: skip
            hit = seed < reached
            rows = curve(took, EvaluationPlan(growth=1.04, far_growth=1.15), target=own.target, stop=took + 1)
            if not hit:
                rows = rows[:-2]
            done = trial(own, rows, TrialStatus.REACHED if hit else TrialStatus.BUDGET_EXHAUSTED)
            size = np.where(np.arange(rows[-1][0]) < starts[1] / sizes[0], *sizes)
            seen = np.concatenate([[0], np.cumsum(size)])
            done = done.replace(
                evaluations=[dataclasses.replace(row, examples=int(seen[row.step])) for row in done.evaluations],
                steps=done.steps | {"examples": seen[1:], "batch_size": size, "lr_factor": np.ones(len(size))},
            )
            store.save(done)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep(tmp_path / "results", {"adamw": TRUTH}, seeds=3, lrs=tuple(5e-4 * 2.0 ** (power / 2) for power in range(11)))
    return tmp_path / "results"


def judged(folder: Path) -> Schedules:
    return schedules(folder, CONFIG)


@pytest.mark.parametrize(
    ("gamma", "verdict"), [(0.3, ScheduleStanding.BETTER), (1.0, ScheduleStanding.ALIKE), (3.0, ScheduleStanding.WORSE)]
)
def test_a_schedule_is_judged_by_what_is_known_of_it(folder: Path, gamma: float, verdict: ScheduleStanding) -> None:
    with_schedule(Store(folder), steps_with(gamma))
    (entry,) = judged(folder).entries
    assert entry.notes == ()
    assert entry.verdict is verdict
    assert (entry.best_lr, entry.at_grid_edge, entry.seeds, entry.seeds_reached) == (2e-3, False, 3, 3)
    # the curve is that at the best learning rate of the grid, a little slower than the best of all
    assert entry.comparison.gamma.value == pytest.approx(gamma, rel=0.2, abs=0.15)
    steps = entry.comparison.steps.value
    assert steps == pytest.approx(steps_with(gamma), rel=0.06)
    assert entry.comparison.examples.value == pytest.approx(2000 + 32 * (steps - 250), rel=0.01)


def test_no_reader_counts_scheduled_trials_as_points_of_a_curve(folder: Path) -> None:
    questions: tuple[Callable[[Path], object], ...] = (
        lambda path: analyze(path, CONFIG).to_json()["fits"],
        lambda path: compare(path, CONFIG).to_json()["comparisons"],
        lambda path: load(path).trials.to_dict("records"),
        lambda path: [group.optimizer for group in load(path).groups],
    )
    before = [json.dumps(question(folder), sort_keys=True, default=str) for question in questions]
    # far too fast: whoever pooled these would get another curve
    with_schedule(Store(folder), 60.0)
    assert [json.dumps(question(folder), sort_keys=True, default=str) for question in questions] == before
    (note,) = load(folder).notes
    assert "9 trials with a batch schedule" in note
    assert "cbs schedule judge" in note


def test_results_without_a_schedule_are_refused(folder: Path) -> None:
    with pytest.raises(ResultsError, match=r"no trial .* has a batch schedule"):
        judged(folder)


def test_what_speaks_against_a_verdict_forbids_it(folder: Path) -> None:
    store = Store(folder)
    steps = steps_with(0.3)
    with_schedule(store, steps, reached=2, choice=f"stages(table='{TABLE}', lr_exponent=0.1)")
    with_schedule(store, steps, seeds=1, choice=f"stages(table='{TABLE}', lr_exponent=0.2)")
    with_schedule(store, steps, lrs=(2e-3,), choice=f"stages(table='{TABLE}', lr_exponent=0.3)")
    with_schedule(store, steps, reached=0, choice=f"stages(table='{TABLE}', lr_exponent=0.4)")
    with_schedule(store, 100.0, choice=f"stages(table='{TABLE}', lr_exponent=0.5)")
    with_schedule(store, 20_000.0, choice=f"stages(table='{TABLE}', lr_exponent=0.6)")
    found = {entry.schedule.partition("lr_exponent=")[2][:3]: entry for entry in judged(folder).entries}
    said = {name: "; ".join(entry.notes) for name, entry in found.items()}
    assert "2 of 3 seeds" in said["0.1"]
    assert "one seed" in said["0.2"]
    assert "edge of the grid" in said["0.3"]
    assert "no trial reached" in said["0.4"]
    assert found["0.4"].comparison is None
    assert "takes as many examples" in said["0.5"]
    assert "takes as many examples" in said["0.6"]
    assert {found[name].verdict for name in ("0.1", "0.2", "0.3", "0.4", "0.6")} == {ScheduleStanding.UNKNOWN}


def test_a_curve_that_cannot_be_believed_judges_nothing(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": TRUTH}, seeds=3, batch_sizes=(128, 256, 512), lrs=tuple(5e-4 * 2.0**p for p in range(6)))
    with_schedule(Store(tmp_path), steps_with(0.3))
    (entry,) = judged(tmp_path).entries
    assert entry.verdict is ScheduleStanding.UNKNOWN
    assert any("constant batch sizes" in note for note in entry.notes)


def test_table_json_and_figures_agree(folder: Path) -> None:
    with_schedule(Store(folder), steps_with(0.3))
    found = judged(folder)
    (row,) = verdicts(found.entries).frame().to_dict("records")
    (entry,) = to_json(found)["schedules"]
    assert row["gamma"] == entry["gamma"]
    assert [row["gamma_low"], row["gamma_high"]] == entry["gamma_interval"]
    assert (row["verdict"], entry["verdict"]) == (ScheduleStanding.BETTER, "better than all constant")
    json.dumps(to_json(found), allow_nan=False)
    pictures = {picture.name: picture.table for picture in figures_of(found)}
    assert set(pictures) == {"schedule_front", "schedule_courses"}
    front = pictures["schedule_front"]
    (mark,) = front[front["kind"] == "schedule"].to_dict("records")
    assert (mark["steps"], mark["examples"]) == (row["steps"], row["examples"])
    assert (front["kind"] == "point").sum() == 8
    courses = pictures["schedule_courses"]
    batch = courses[courses["panel"].str.endswith("batch size")]
    assert set(batch["y"]) == {8.0, 32.0}
    assert batch.loc[batch["y"] == 32.0, "x"].min() == 2000
    over_data = courses[courses["panel"].str.endswith("over data")]
    over_steps = courses[courses["panel"].str.endswith("over steps")]
    assert over_data["y"].tolist() == over_steps["y"].tolist()
    assert (over_data["x"].to_numpy() > over_steps["x"].to_numpy()).all()


@pytest.mark.parametrize("throughput", [None, Assumed(examples_per_second=8.0, latency=3.0)])
def test_a_screen_holds_what_schedules_save(folder: Path, throughput: Assumed | None) -> None:
    for exponent, gamma in enumerate((3.0, 0.3, 0.6, 1.0)):
        choice = f"stages(table='{TABLE}', lr_exponent={exponent / 2})"
        with_schedule(Store(folder), steps_with(gamma), choice=choice)
    found = schedules(folder, CONFIG, throughput=throughput)
    lines = str(found).splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines[:-1])) <= 80
    (table,) = (part for part in presentation(found).shown if not isinstance(part, str))
    assert any("time saved" in column.heading for column in table.columns) is (throughput is not None)
    assert lines[-1] == f"next: cbs report {folder}"
    rows = [line for line in lines if line.startswith("adamw  ")]
    assert [re.search(r"exponent=([\d.]+)", row)[1] for row in rows] == ["0.5", "1.0", "1.5"]  # type: ignore[index]
    assert f"{len(rows)} of 4 schedules: --wide shows all" in lines
    assert any(column.heading == "gamma" for column in presentation(found).wide[0].columns)  # type: ignore[union-attr]


def test_hours_of_a_schedule_are_the_step_times_of_its_stages(folder: Path) -> None:
    with_schedule(Store(folder), steps_with(0.3))
    assumed = Assumed(examples_per_second=8.0, latency=3.0)
    found = schedules(folder, CONFIG, throughput=assumed, devices=2)
    assert "on 2 devices: assumed" in found.timing[0]
    (entry,) = found.entries
    steps, examples = entry.comparison.steps.value or 0.0, entry.comparison.examples.value or 0.0
    # geometric means over seeds of sums that are nearly proportional
    wanted = (3.0 * steps + examples / 16.0) / 3600
    (told,) = to_json(found)["schedules"]
    assert told["hours"] == pytest.approx(wanted, rel=1e-3)
    low, high = told["hours_saved_interval"]
    assert 0 < low < told["hours_saved"] < (high or math.inf)
    (row,) = verdicts(found.entries).frame().to_dict("records")
    assert [row["hours"], row["hours_saved_low"]] == [told["hours"], low]
    assert {"time (min)", "time saved (min)"} <= {column.heading for column in verdicts(found.entries).columns}
    few = StepTimeTable((StepTime(batch_size=8, seconds=1.0),))
    (entry,) = schedules(folder, CONFIG, throughput=few).entries
    assert any("no step time" in note for note in entry.notes)
    assert entry.verdict is ScheduleStanding.BETTER
    assert "hours" not in verdicts(judged(folder).entries).frame().columns


LOSSES = AnalysisConfig(resamples=400)
BUDGET, SIZES, NOISE = 4096, (16, 64), 0.001
STAGES = "stages(table='0:16 2048:64')"


def add(
    store: Store, loss: Callable[[float], float], *, seeds: int = 3, examples: int = BUDGET, ends: str = ""
) -> None:
    """Trials under the schedule from batch size 16 that end at a loss by learning rate."""
    config = next(result.config for result in store.results() if result.config.batch_size == 16)
    lrs = sorted({result.config.lr for result in store.results() if result.config.batch_size == 16})
    steps = examples // 2 // 16 + examples // 2 // 64
    rng = np.random.default_rng(3)
    for lr in lrs:
        for seed in range(seeds):
            own: TrialConfig = dataclasses.replace(config, lr=lr, seed=seed, batch_schedule=parse_choice(STAGES))
            last = loss(lr) + NOISE * rng.standard_normal()
            points = [(0, 0, 5.0), (steps // 2, examples // 4, last + 0.3), (steps, examples, last)]
            rows = [Measurement(step=s, examples=e, lr=lr, value=v, train_loss=1.0) for s, e, v in points]
            size = np.repeat([16, 64], [examples // 2 // 16, examples // 2 // 64])
            columns = {"step": np.arange(1, steps + 1), "examples": np.cumsum(size), "batch_size": size}
            store.save(
                TrialResult(
                    config=own, status=TrialStatus[ends or "BUDGET_EXHAUSTED"], evaluations=rows, steps_to_target=None,
                    steps=columns | {"train_loss": np.ones(steps), "lr_factor": np.ones(steps)},
                    workload=next(store.results()).workload,
                )
            )  # fmt: skip


def judged_losses(root: Path, schedule: str = "stages") -> ScheduleLoss:
    found = schedule_losses(root, LOSSES)
    assert [(each.schedule, each.batch_size) for each in found.entries] == [
        ("constant", 16), ("constant", 64), ("stages", 16),
    ]  # fmt: skip
    return next(each for each in found.entries if each.schedule == schedule)


def less(entry: ScheduleLoss, batch_size: int) -> LossDifference:
    return next(each for each in entry.against if each.batch_size == batch_size)


@pytest.fixture
def world(tmp_path: Path) -> Store:
    write(tmp_path / "s", {"adamw": World(critical=64.0)}, sizes=SIZES, budget=BUDGET, noise=NOISE)
    return Store(tmp_path / "s")


def bowl(least: float) -> Callable[[float], float]:
    """Losses about the learning rate that is the best of the grid at batch size 16."""
    best = 1.1e-3 * np.sqrt(16)
    return lambda lr: least + 0.02 * float(np.log(lr / best)) ** 2


def test_the_difference_to_each_constant_batch_size_is_found_with_its_interval(world: Store) -> None:
    truth = World(critical=64.0)
    small, large = (truth.loss(size, 1e-3 * np.sqrt(size), BUDGET) for size in SIZES)
    add(world, bowl(small + 0.01))
    entry = judged_losses(world.root)
    assert (entry.seeds, entry.at_grid_edge, entry.examples, entry.steps) == (3, False, BUDGET, 128 + 32)
    for size, expected, saved in ((16, 0.01, 1 - 160 / 256), (64, small + 0.01 - large, 1 - 160 / 64)):
        near = less(entry, size)
        low, high = near.interval
        assert near.value == pytest.approx(expected, abs=3 * NOISE)
        assert low < expected < high
        assert high - low < 20 * NOISE
        assert near.steps_saved == pytest.approx(saved)
    assert less(entry, 16).probability_smaller == 0.0
    assert less(entry, 64).probability_smaller == 1.0
    constant = schedule_losses(world.root, LOSSES).entries[0]
    assert [each.batch_size for each in constant.against] == [64]


def test_more_is_better_the_other_way_round(tmp_path: Path) -> None:
    write(tmp_path / "s", {"adamw": World(critical=64.0)}, sizes=SIZES, budget=BUDGET, noise=NOISE, metric="accuracy",
          direction="above")  # fmt: skip
    store, truth = Store(tmp_path / "s"), World(critical=64.0)
    small = truth.loss(16, 1e-3 * np.sqrt(16), BUDGET)
    add(store, lambda lr: -bowl(small + 0.05)(lr))
    near = less(judged_losses(store.root), 16)
    assert near.value == pytest.approx(-0.05, abs=3 * NOISE)  # an accuracy that is .05 lower
    assert near.interval[0] - NOISE / 2 < -0.05 < near.interval[1] + NOISE / 2
    assert near.interval[0] < near.value < near.interval[1]


@pytest.mark.parametrize("better", [False, True])
def test_where_the_best_rate_is_an_edge_of_the_grid_one_end_is_open(tmp_path: Path, better: bool) -> None:
    kind = {"metric": "accuracy", "direction": "above"} if better else {}
    write(tmp_path / "s", {"adamw": World(critical=64.0)}, sizes=SIZES, budget=BUDGET, noise=NOISE, **kind)
    sign = -1.0 if better else 1.0
    add(Store(tmp_path / "s"), lambda lr: sign * (3.0 + 0.1 * float(np.log(lr))))  # the lowest is the best
    entry = judged_losses(tmp_path / "s")
    near = less(entry, 16)
    assert entry.at_grid_edge
    assert [end is None for end in near.interval] == [not better, better]
    assert near.probability_smaller is None
    assert [end is None for end in entry.metric.interval] == [not better, better]


def test_a_single_learning_rate_beside_tuned_ones_is_an_edge(world: Store) -> None:
    add(world, bowl(3.0))
    scheduled = [result for result in world.results() if result.config.batch_schedule is not None]
    highest = max(result.config.lr for result in scheduled)
    for result in scheduled:
        if result.config.lr != highest:
            shutil.rmtree(world.root / "trials" / result.trial_id)
    entry = judged_losses(world.root)
    assert entry.at_grid_edge
    assert None in entry.metric.interval


def test_what_cannot_be_compared_is_refused(tmp_path: Path, world: Store) -> None:
    with pytest.raises(ResultsError, match=r"no batch schedule at .* has constant batch sizes to compare with"):
        schedule_losses(world.root, LOSSES)
    add(world, bowl(3.0), examples=2 * BUDGET)
    with pytest.raises(
        ResultsError, match="different budgets in budget: constant from batch size 16 saw 4096 examples of 8192"
    ):
        schedule_losses(world.root, LOSSES)
    write(tmp_path / "t", {"adamw": World()}, sizes=SIZES, budget=BUDGET, stops_at_target=True)
    add(Store(tmp_path / "t"), bowl(3.0))
    with pytest.raises(ResultsError, match="trials end at a target; run the sweep with --budget"):
        schedule_losses(tmp_path / "t", LOSSES)


def test_it_is_told_as_a_table_a_figure_and_json(world: Store, run: Callable[..., tuple[int, str, str]]) -> None:
    add(world, bowl(3.0))
    code, out, err = run("schedule", "judge", world.root, "--resamples", 100)
    assert code == 0, err
    code, _, refused = run("schedule", "judge", world.root, "--target", 3, "--devices", 2, "--definition", "pareto")
    assert (code, "--target NUMBER, --definition, --devices: these trials end at a budget" in refused) == (2, True)
    assert "less that of" not in out
    rows = [line for line in out.splitlines() if line.startswith("adamw ")]
    assert sum("stages" in row for row in rows) == sum("constant" in row for row in rows) == 2, out
    (picture,) = figures_of(schedule_losses(world.root, LOSSES))
    assert picture.name == "schedule_losses"
    (axes,) = picture.kind.figure(picture.table).axes
    assert axes.get_ylabel() == "validation loss at the end"
    assert list(picture.table["optimizer"]) == ["constant, B = 16", "constant, B = 64", "stages from 16"]
    assert to_json(schedule_losses(world.root, LOSSES))["entries"][2]["against"][0]["batch_size"] == 16
    assert (world.root / "analysis" / "schedules" / "figures" / "schedule_losses.png").is_file()
