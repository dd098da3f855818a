"""Options and batch schedules as axes of a sweep."""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import at_best
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.studies import point as point_of
from analysis.estimate.suggest.earlier_command import adding
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import parse_choice
from cbs.trial.config import Choice
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.external.asked import with_axes
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.launch import output_folder, resolve
from sweeps.launching.policies.precision import Precision
from sweeps.outlook.remaining import outlook
from sweeps.outlook.report import dry_run_report
from sweeps.search.forecast import play
from sweeps.search.search import Search
from sweeps.spec.axes import Axes, Cell
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.overrides import override
from sweeps.spec.spec import Sweep, prototype
from tests.analysis.estimate.test_studies import study
from tests.sweeps.joint_worlds import MOMENTA, TRUTH, World, replicate, sweep
from tests.sweeps.simulation import small_sweep

SGD = small_sweep(optimizers=(Choice(name="sgd"), Choice(name="adamw")))
WORLD = World(0.03, 0)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with tuned momentum on disk."""
    store = Store(tmp_path_factory.mktemp("joint"))
    asked = sweep(seeds=2)
    store.prepare()
    store.write_manifest(merged_manifest(store, asked, "cbs sweep --optim sgd --axis momentum=0.8,0.9,0.95,0.98"))
    for result in play(Search(asked), WORLD.end).results:
        count = result.final_step
        store.save(result.replace(steps={"step": np.arange(1, count + 1), "examples": np.arange(1, count + 1)}))
    return store.root


def test_an_axis_makes_variants_of_the_optimizers_that_have_the_option() -> None:
    asked = with_axes(SGD, ["momentum=0.9,0.95", "sgd.nesterov=true,false"])
    assert [str(choice) for choice in asked.axes.optimizers] == [
        "sgd(momentum=0.9, nesterov=true)",
        "sgd(momentum=0.9, nesterov=false)",
        "sgd(momentum=0.95, nesterov=true)",
        "sgd(momentum=0.95, nesterov=false)",
        "adamw",
    ]
    assert asked.axes.tuned == {"sgd": ["momentum", "nesterov"]}
    assert {str(asked.axes.pooled(choice)) for choice in asked.axes.optimizers} == {"sgd", "adamw"}
    assert asked.protocol_fingerprint == SGD.protocol_fingerprint
    both = with_axes(SGD, ["optimizer.weight_decay=0,0.1", "adamw.betas=[0.9, 0.95],[0.9, 0.99]"])
    assert len(both.axes.optimizers) == 6
    assert both.axes.tuned == {"sgd": ["weight_decay"], "adamw": ["betas", "weight_decay"]}
    assert "tuned" not in SGD.axes.to_json()


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("momentum", "takes option=value,value"),
        ("=0.9", "takes option=value,value"),
        ("momentum=0.9", "two values or more"),
        ("momentum=", "two values or more"),
        ("momentum=0.9,0.9", "appears twice"),
        ("momentun=0.9,0.95", "did you mean momentum"),
        ("workload.size=1,2", "an option of an optimizer, and sgd, adamw has no 'workload.size'"),
        ("batch_size=1,2", "has no 'batch_size'"),
        ("adamw.momentum=0.8,0.9", "has no 'momentum'"),
        ("momentum=[0.9,0.95", "is missing"),
    ],
)
def test_what_is_no_axis(axis: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_axes(SGD, [axis])


def test_an_option_is_said_once() -> None:
    with pytest.raises(ConfigError, match="has a value of momentum already"):
        with_axes(SGD, ["momentum=0.9,0.95", "momentum=0.8,0.85"])


def test_a_folder_does_not_mix_a_tuned_option_with_one_that_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    tuned = with_axes(SGD, ["momentum=0.9,0.95"])
    store.write_manifest(merged_manifest(store, tuned, "first"))
    more = with_axes(SGD, ["momentum=0.95,0.98"])
    assert len(merged_manifest(store, more, "more")["axes"]["optimizers"]) == 4
    alone = SGD.replace(optimizers=(Choice(name="adamw"), Choice(name="muon")))
    assert merged_manifest(store, alone, "other optimizers")["axes"]["tuned"] == {"sgd": ["momentum"]}
    with pytest.raises(ResultsError, match="sgd with momentum tuned in addition to the learning rate, not nothing"):
        merged_manifest(store, SGD, "second")


def test_the_best_combination_of_every_batch_size_is_the_curve(stored: Path) -> None:
    (answer,) = analyze(stored, AnalysisConfig(resamples=200)).answers
    assert answer.group.choice == Choice(name="sgd")
    assert answer.critical_batch_size == pytest.approx(TRUTH, rel=0.2)
    best = [f"momentum={MOMENTA[WORLD.best_momentum(point.batch_size)]}" for point in answer.points]
    assert [point.tuned for point in answer.points] == best
    assert not any(point.at_axis_edge or point.at_grid_edge for point in answer.points)
    shown = json.loads(json.dumps(answer.to_json()))
    assert shown["tuned"] == ["momentum"]
    assert [point["tuned"] for point in shown["points"]] == [{"momentum": float(each[9:])} for each in best]
    for joint, point in zip(answer.studies, answer.points, strict=True):
        rows = joint.along_lr
        assert len(rows.lrs) < len(joint.lrs)
        # fewest steps of all combinations: the minimum over the axis of the minimum over the learning rates
        complete = np.where(joint.ran.all(axis=1), np.log(joint.steps).mean(axis=1), math.inf)
        assert point.steps_to_target == pytest.approx(math.exp(np.nanmin(complete)), rel=0.02)
        assert point.best_lr in rows.lrs[1:-1]


def test_neighbours_of_the_best_learning_rate_have_its_options(stored: Path) -> None:
    """What a finer learning rate saves is asked of the trials with the options that won."""
    (answer,) = analyze(stored, AnalysisConfig(resamples=100)).answers
    alone = at_best([joint.along_lr for joint in answer.studies])
    assert [each.saving for each in at_best(answer.studies)] == [each.saving for each in alone]
    # the highest learning rate of its options: the next row is no neighbour
    tuned = np.array(["a=1", "a=1", "a=2", "a=2"], dtype=object)
    edge = replace(study([[300.0], [200.0], [400.0], [500.0]]), tuned=tuned)
    assert at_best([edge])[0].edge == 1
    assert point_of(edge).at_grid_edge


def test_a_command_that_adds_trials_has_the_axis_with_all_its_values(stored: Path) -> None:
    line = adding(Store(stored).manifest(), stored, Choice(name="sgd"), (8,), (0, 1), None)
    axis = "--axis momentum=0.8,0.9,0.95,0.98"
    assert line == f"cbs sweep --optim sgd {axis} --batch-sizes 8 --seeds 0,1 --output {stored}"
    assert "--axis" not in adding(Store(stored).manifest(), stored, Choice(name="adamw"), (8,), (0, 1), None)


def test_a_sweep_to_a_precision_looks_at_the_one_curve_of_all_variants(stored: Path) -> None:
    found = Precision().look(sweep(), stored)
    assert list(found) == [f"sgd(momentum={momentum})" for momentum in MOMENTA]
    assert len({id(answer) for answer in found.values()}) == 1


def test_tables_say_which_value_won(
    stored: Path, run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, _, err = run("analyze", stored, "--resamples", "100", "-o", tmp_path / "a", "--figures", "none")
    assert (code, err) == (0, "")
    assert "momentum=0.9" in (tmp_path / "a" / "points.csv").read_text()


def test_an_end_of_the_axis_is_told_as_an_end_of_the_grid() -> None:
    assert replicate(World(0.03, 1), MOMENTA[1:3], 100)["verdict"] == Verdict.AT_GRID_EDGE
    assert replicate(World(0.03, 1), MOMENTA, 100)["verdict"] == Verdict.OK


def test_values_that_no_one_goes_below_are_no_end() -> None:
    ends = {"0 0.1 0.2": "001", "0.1 0.2 0.3": "101", "true false none": "000"}
    for values, at_end in ends.items():
        tuned = np.array([f"decay={value}" for value in values.split()], dtype=object)
        changed = replace(study([[3.0], [2.0], [4.0]]), tuned=tuned)
        assert [changed.edges_of_axes(row) for row in range(3)] == [("decay",) * int(end) for end in at_end]


def test_the_interval_holds_the_truth_where_the_best_momentum_moves() -> None:
    """Of two at 95 %, none is found once in 400; the slow test counts."""
    found = [replicate(World(0.1, number), resamples=100) for number in range(2)]
    assert any(one["covered"] for one in found)
    assert statistics.mean(one["momentum"] for one in found) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_the_interval_has_the_coverage_it_states(noise: float) -> None:
    """Of 50 at 95 %, 42 and fewer are found once in 300."""
    found = [replicate(World(noise, number), resamples=200) for number in range(50)]
    assert sum(one["covered"] for one in found) >= 43


def test_a_malformed_plan_is_refused(stored: Path, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    manifest = Store(stored).manifest()
    manifest.pop("schema_version")
    store.write_manifest(manifest | {"axes": manifest["axes"] | {"tuned": {"sgd": 7}}})
    with pytest.raises(ResultsError, match=r"axes.tuned in sweep.json"):
        load(tmp_path)


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
