"""Batch schedules in a folder of results: kept out of every curve, and judged against it."""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.present import presentation, to_json
from analysis.present.figures import figures_of
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.questions.compare.optimizers import compare
from analysis.read.results import load
from analysis.read.throughput import Assumed, StepTimeTable
from cbs.errors import ResultsError
from cbs.registry.choices import parse_choice
from cbs.registry.values import parse_table
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.step_times import StepTime
from cbs.trial.store import Store
from cbs.trial.target import Target
from extensions.schedules.judge.judged import Schedules, ScheduleStanding, course_of, schedules
from extensions.schedules.plan.stages import stages
from extensions.schedules.tables import verdicts
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


def test_trials_under_a_schedule_alone_are_no_curve(folder: Path) -> None:
    store = Store(folder)
    with_schedule(store, 500.0)
    for trial_id in store.trial_ids():
        if "stages" not in trial_id:
            for path in (store.trials / trial_id).iterdir():
                path.unlink()
            (store.trials / trial_id).rmdir()
    for question in (load, lambda path: analyze(path, CONFIG), lambda path: schedules(path, CONFIG)):
        with pytest.raises(ResultsError, match="every trial has a batch schedule"):
            question(folder)


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


def test_a_schedule_that_had_not_begun_when_the_target_was_reached_says_nothing(folder: Path) -> None:
    with_schedule(Store(folder), 230.0)
    (entry,) = judged(folder).entries
    assert entry.verdict is ScheduleStanding.UNKNOWN
    assert any("before the batch size changed" in note for note in entry.notes)


def test_a_curve_that_cannot_be_believed_judges_nothing(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": TRUTH}, seeds=3, batch_sizes=(128, 256, 512), lrs=tuple(5e-4 * 2.0**p for p in range(6)))
    with_schedule(Store(tmp_path), steps_with(0.3))
    (entry,) = judged(tmp_path).entries
    assert entry.verdict is ScheduleStanding.UNKNOWN
    assert any("constant batch sizes" in note for note in entry.notes)


def test_off_the_hyperbola_there_is_no_gamma(tmp_path: Path) -> None:
    truth = Truth(noise=0.01, exponent=0.6)
    sweep(tmp_path, {"adamw": truth}, seeds=3, lrs=tuple(5e-4 * 2.0 ** (power / 2) for power in range(11)))
    with_schedule(Store(tmp_path), 450.0, noise=0.01)
    (entry,) = judged(tmp_path).entries
    assert entry.comparison.gamma.value is None
    assert entry.comparison.steps_saved.value is not None
    assert any("not a hyperbola" in note for note in entry.notes)


def test_a_schedule_of_other_settings_has_no_reference(folder: Path) -> None:
    store = Store(folder)
    with_schedule(store, 500.0)
    for trial_id in [name for name in store.trial_ids() if "stages" in name]:
        result = store.load(trial_id)
        for path in (store.trials / trial_id).iterdir():
            path.unlink()
        (store.trials / trial_id).rmdir()
        store.save(result.replace(config=dataclasses.replace(result.config, clip_norm=1.0)))
    found = judged(folder)
    assert found.entries == ()
    assert any("have no constant batch sizes with otherwise equal settings" in note for note in found.notes)


def test_an_easier_target_is_read_from_the_same_runs(folder: Path) -> None:
    with_schedule(Store(folder), steps_with(1.0))
    found = schedules(folder, CONFIG, targets=[2.4, 2.6])
    hard, easy = found.entries
    assert (easy.comparison.steps.value or 0) < (hard.comparison.steps.value or 0)
    # one run of the schedule is drawn, that of the harder one: no line goes back
    courses = next(picture.table for picture in figures_of(found) if picture.name == "schedule_courses")
    assert set(courses["target_value"]) == {2.4}
    assert all((np.diff(rows["x"]) >= 0).all() for _, rows in courses.groupby("panel"))


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


def timed(folder: Path, hosts: tuple[str, ...] = ("one",)) -> None:
    """Every trial took 3 s and an eighth of a second an example in a step, and some further one."""
    for place, result in enumerate(Store(folder).results()):
        steps = result.evaluations[-1].step
        seconds = steps * (3.0 + result.config.batch_size / 8.0) * (1.0, 1.0, 50.0)[place % 3]
        told = {"training_seconds": seconds, "seconds": 9 * seconds, "device": "cpu", "threads": 1}
        path = Store(folder).trials / result.config.trial_id / "timing.json"
        path.write_text(json.dumps(told | {"host": hosts[place % len(hosts)]}))


def test_hours_come_from_the_trials_where_nothing_else_says_them(folder: Path) -> None:
    with_schedule(Store(folder), steps_with(0.3))
    said = "hours are unknown: no trial recorded how long its steps took; give --throughput"
    assert judged(folder).timing == (said,)
    timed(folder)
    found = judged(folder)
    assert "hours on 1 device: step times measured, from the trials themselves (on cpu;" in found.timing[0]
    (told,) = to_json(found)["schedules"]
    (same,) = to_json(schedules(folder, CONFIG, throughput=Assumed(examples_per_second=8.0, latency=3.0)))["schedules"]
    # between measured batch sizes the log of the seconds is taken to be linear; 8 and 32 were measured
    assert told["hours"] == pytest.approx(same["hours"], rel=1e-6)
    # a constant batch size of as many examples lies between 4 and 512
    assert told["hours_saved"] == pytest.approx(same["hours_saved"], rel=0.05)
    timed(folder, ("one", "two"))
    assert "2 machines that differ" in judged(folder).timing[0]


def test_learning_rates_between_evaluations_are_those_of_the_schedules() -> None:
    """A trial evaluated at every step tells what one evaluated at few of them trained with."""
    config = TrialConfig(
        workload=Choice(name="noisy_quadratic", options={"dimension": 5}), optimizer=Choice(name="sgd"), lr=0.05,
        batch_size=6, seed=5, target=Target(metric="validation_loss", value=1e-9), max_steps=150, probe=None,
        schedule=Schedule(name="cosine", warmup_examples=60, decay_examples=900),
        batch_schedule=parse_choice("stages(table='0:6 100:16 301:40', lr_exponent=0.5)"),
        evaluation=EvaluationPlan(growth=1.2, far_growth=1.2),
    )  # fmt: skip
    every = run_trial(dataclasses.replace(config, evaluation=EvaluationPlan(growth=1.0001, far_growth=1.0001)))
    sparse = run_trial(config)
    trial = pd.Series({
        "steps": [row.step for row in sparse.evaluations], "values": [row.value for row in sparse.evaluations],
        "lrs": [row.lr for row in sparse.evaluations],
    }, name=3)  # fmt: skip
    course = course_of(trial, {3: sparse.steps})
    true = np.array([row.lr for row in every.evaluations[1:]])
    assert len(sparse.evaluations) < len(true) / 2
    np.testing.assert_allclose(course["lr"].sum(), true.sum(), rtol=0.01)
    at = [row.step - 1 for row in sparse.evaluations[1:]]
    np.testing.assert_allclose(course["lr"].to_numpy()[at], true[at], rtol=1e-12)


def test_stages_of_a_table_by_hand() -> None:
    found = stages("0:8 100:16", "200")
    assert [(stage.start, stage.batch_size, stage.steps) for stage in found.stages] == [(0, 8, 13), (100, 16, 6)]
    assert found.steps == 19
    assert found.constant == {8: pytest.approx(1 - 19 / 25), 16: pytest.approx(1 - 19 / 12.5)}
    olmo = stages("0:1024 168B:2048 503B:4096", "608B", tokens_per_example=4096)
    assert olmo.constant[1024] == pytest.approx(0.405, abs=0.0005)
