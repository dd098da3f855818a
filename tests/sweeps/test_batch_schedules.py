"""Batch schedules as an axis of a sweep, where nothing runs yet."""

from pathlib import Path

import pytest

from analysis.estimate.suggest.earlier_command import adding
from cbs.errors import ConfigError
from cbs.registry.choices import parse_choice
from cbs.trial.config import Choice
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.launch import output_folder, resolve
from sweeps.outlook.remaining import outlook
from sweeps.outlook.report import dry_run_report
from sweeps.search.search import Search
from sweeps.spec.axes import Axes
from sweeps.spec.cell import Cell
from sweeps.spec.overrides import override
from sweeps.spec.schedule_rule import ScheduleRule
from sweeps.spec.spec import Sweep, prototype

SEESAW, LATE = parse_choice("seesaw(alpha=3)"), parse_choice("late_switch(to=16)")


def tiny(*schedules: Choice, **changes: object) -> Sweep:
    base = Sweep(
        name="tiny",
        trial=prototype(workload=Choice(name="noisy_quadratic", options={"dimension": 20})),
        axes=Axes(optimizers=(Choice(name="sgd"), Choice(name="adamw")), batch_sizes=(4, 8), lrs=(0.1, 0.2)),
        schedule=ScheduleRule(name="cosine", decay_examples=5000),
    )
    changes |= {"batch_schedules": schedules} if schedules else {}
    return resolve(base.replace(**changes), 0.2)


def test_every_schedule_runs_under_every_optimizer_and_has_a_search_of_its_own() -> None:
    sweep = tiny(Choice(name="constant"), SEESAW, LATE)
    assert len(sweep.studies()) == 2 * 2 * 3
    assert list(sweep.axes.labels.values())[:3] == ["sgd", "sgd, seesaw", "sgd, late_switch"]
    search = Search(sweep)
    trials = search.waiting()
    assert len(trials) == len({trial.trial_id for trial in trials}) == 2 * 2 * 3 * 2
    for trial in trials:
        cell = Cell.of(trial)
        assert sweep.trial_at(cell, trial.lr) == trial
    # what one schedule took bounds no other
    trial = next(trial for trial in trials if trial.batch_schedule == LATE)
    search.running[trial.trial_id] = (Cell.of(trial), trial.lr)
    done = TrialResult(
        config=trial, status=TrialStatus.REACHED, steps_to_target=3.0, evaluations=[], steps={}, workload=None
    )
    search.add(done)
    assert [cell for cell in search.cells() if search.best_steps(cell) is not None] == [Cell.of(trial)]
    assert Cell.of(trial).optimizer == f"{trial.optimizer}, late_switch(to=16)"


def test_what_is_left_of_schedules_alone_is_foreseen() -> None:
    """Trials under a schedule are expected to take the steps of that schedule's, not of the optimizer's without."""
    sweep = tiny(SEESAW, LATE)
    search = Search(sweep)
    trial = next(trial for trial in search.waiting() if trial.batch_schedule == LATE)
    done = TrialResult(
        config=trial, status=TrialStatus.REACHED, steps_to_target=3.0, evaluations=[], steps={}, workload=None
    )
    before, after = (outlook(sweep, finished, None, 2)[1] for finished in ((), (done,)))
    assert before.trials.total() >= len(sweep.studies()) > 0
    assert after.trials.total() < before.trials.total()


def test_constant_trials_are_those_of_a_sweep_without_schedules() -> None:
    plain, mixed = Search(tiny()).waiting(), Search(tiny(SEESAW, Choice(name="constant"))).waiting()
    assert {trial.trial_id for trial in plain} < {trial.trial_id for trial in mixed}
    assert "batch_schedules" not in tiny().axes.to_json()
    assert tiny().protocol() == tiny(SEESAW).protocol()


def test_schedules_join_the_folder_of_the_sweep(tmp_path: Path) -> None:
    base, later = tiny(), tiny(SEESAW)
    assert output_folder(later, base, tmp_path) == tmp_path / "tiny"
    store = Store(tmp_path / "tiny")
    store.prepare()
    store.write_manifest(merged_manifest(store, base, "cbs sweep"))
    store.write_manifest(merged_manifest(store, later, "cbs sweep --schedule 'seesaw(alpha=3)'"))
    assert store.manifest()["axes"]["batch_schedules"] == ["constant", "seesaw(alpha=3)"]
    store.write_manifest(merged_manifest(store, base, "cbs sweep"))
    assert store.manifest()["axes"]["batch_schedules"] == ["constant", "seesaw(alpha=3)"]


def test_options_are_set_where_a_schedule_has_them() -> None:
    sweep = override(tiny(SEESAW, LATE), ["schedule.alpha=4", "schedule.to=32", "schedule.final_fraction=0.1"])
    assert [str(choice) for choice in sweep.axes.batch_schedules] == ["seesaw(alpha=4)", "late_switch(to=32)"]
    assert sweep.schedule.final_fraction == 0.1
    with pytest.raises(ConfigError, match="no batch schedule of the sweep"):
        override(tiny(), ["schedule.alpha=4"])


@pytest.mark.parametrize(
    ("schedule", "changes", "said"),
    [
        ("seesaw", {"schedule": ScheduleRule()}, "does not decay"),
        ("stages(table='0:4 1K:16')", {}, "use --batch-sizes 4"),
        ("stages(table='0:4 9M:16')", {"batch_sizes": (4,)}, "beyond the budget"),
        ("norm_test", {"probe": None}, "needs a probe to measure the run"),
        ("growth(first_examples=10, gamma=3)", {}, "diverges"),
        ("see_saw", {}, "seesaw"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(schedule: str, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny(parse_choice(schedule), **changes)


def test_a_schedule_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_schedules holds a value twice"):
        tiny(SEESAW, SEESAW)


def test_a_dry_run_tells_the_learning_rates_of_every_schedule(tmp_path: Path) -> None:
    report = dry_run_report(tiny(Choice(name="constant"), LATE), tmp_path, None, 1)
    assert report["lrs"] == {name: [0.1, 0.2] for name in ("sgd", "sgd, late_switch", "adamw", "adamw, late_switch")}


def test_a_suggested_command_adds_to_the_curve_of_constant_batch_sizes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    told = "cbs sweep --optim sgd --schedule seesaw --set schedule.alpha=3 --set schedule.name=cosine --set max_steps=9"
    store.write_manifest(merged_manifest(store, tiny(SEESAW), told))
    line = adding(Store(tmp_path).manifest(), tmp_path, Choice(name="sgd"), (4, 8), (0, 1), None)
    assert "seesaw" not in line
    assert "alpha" not in line
    assert "--set schedule.name=cosine --set max_steps=9" in line
