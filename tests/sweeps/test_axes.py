"""Options and batch schedules as axes of a sweep."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import parse_choice
from cbs.trial.config import Choice
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.external.asked import with_axes
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.launch import resolve
from sweeps.launching.loop import follow
from sweeps.launching.policies import Once
from sweeps.launching.policies.precision import Precision
from sweeps.launching.policies.staged import EachSetting, split_axes
from sweeps.outlook.report import dry_run_report
from sweeps.search.forecast import play
from sweeps.search.search import Limits, Search
from sweeps.spec.axes import Axes, Cell
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.overrides import override
from sweeps.spec.spec import Sweep, prototype
from tests.sweeps.joint_worlds import MOMENTA, TRUTH, World, replicate, sweep
from tests.sweeps.simulation import run_search, small_sweep

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


def test_a_sweep_to_a_precision_looks_at_the_one_curve_of_all_variants(stored: Path) -> None:
    found = Precision().look(sweep(), stored)
    assert list(found) == [f"sgd(momentum={momentum})" for momentum in MOMENTA]
    assert len({id(answer) for answer in found.values()}) == 1


def test_an_end_of_the_axis_is_told_as_an_end_of_the_grid() -> None:
    assert replicate(World(0.03, 1), MOMENTA[1:3], 100)["verdict"] == Verdict.AT_GRID_EDGE
    assert replicate(World(0.03, 1), MOMENTA, 100)["verdict"] == Verdict.OK


def test_the_interval_holds_the_truth_where_the_best_momentum_moves() -> None:
    """Of two at 95 %, none is found once in 400; the slow test counts."""
    found = [replicate(World(0.1, number), resamples=100) for number in range(2)]
    assert any(one["covered"] for one in found)
    assert statistics.mean(one["momentum"] for one in found) > 0.7


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


def test_constant_trials_are_those_of_a_sweep_without_schedules() -> None:
    plain, mixed = Search(tiny()).waiting(), Search(tiny(SEESAW, Choice(name="constant"))).waiting()
    assert {trial.trial_id for trial in plain} < {trial.trial_id for trial in mixed}
    assert "batch_schedules" not in tiny().axes.to_json()
    assert tiny().protocol() == tiny(SEESAW).protocol()


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
        ("see_saw", {}, "seesaw"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(schedule: str, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny(parse_choice(schedule), **changes)


def test_a_dry_run_tells_the_learning_rates_of_every_schedule(tmp_path: Path) -> None:
    report = dry_run_report(tiny(Choice(name="constant"), LATE), tmp_path, None, 1)
    assert report["lrs"] == {name: [0.1, 0.2] for name in ("sgd", "sgd, late_switch", "adamw", "adamw, late_switch")}


AXES = {"clip_norm": ("1", "none"), "averaging": ("none", '"ema(half_life=50)"')}


def test_settings_are_axes_of_their_own_and_options_of_optimizers_are_left():
    settings, rest = split_axes(
        ["clip_norm=1,none", "momentum=.9,.95", "averaging=none,'ema(half_life=50)'", "adamw.eps=1e-8,1e-6"]
    )
    assert settings == AXES
    assert rest == ["momentum=.9,.95", "adamw.eps=1e-8,1e-6"]


@pytest.mark.parametrize("axes", [["clip_norm=1"], ["clip_norm=1,1"], ["clip_norm=1,2", "clip_norm=3,4"]])
def test_an_axis_has_two_values_each_once(axes):
    with pytest.raises(ConfigError, match="--set clip_norm= sets one"):
        split_axes(axes)


def test_every_combination_runs_in_a_folder_of_its_own_and_is_told_apart(tmp_path):
    seen: list[tuple[Sweep, Path]] = []

    def run(part: Sweep, place: Path) -> Search:
        seen.append((part, place))
        search = Search(part)
        run_search(search)
        return search

    asked, said = small_sweep(seeds=(0,), batch_sizes=(4,)), []
    report = follow(EachSetting(Once, AXES), asked, tmp_path / "x", run, Limits(), said.append)
    assert [place.name for _, place in seen] == [
        "x-clip_norm=1-averaging=none",
        "x-clip_norm=1-averaging=ema(half_life=50)",
        "x-clip_norm=none-averaging=none",
        "x-clip_norm=none-averaging=ema(half_life=50)",
    ]
    assert [(part.trial.clip_norm, part.trial.averaging and part.trial.averaging.name) for part, _ in seen] == [
        (1.0, None), (1.0, "ema"), (None, None), (None, "ema")
    ]  # fmt: skip
    assert len({part.protocol_fingerprint for part, _ in seen}) == 4
    assert [content["settings"] for content in report.content["sweeps"]][1] == [
        "clip_norm=1", 'averaging="ema(half_life=50)"'
    ]  # fmt: skip
    assert report.content["examples"] == sum(content["examples"] for content in report.content["sweeps"])
    assert report.content["failures"] == {"trials": 0, "first": None}
    assert len([line for line in report.lines if line.startswith("== ")]) == len(said) == 4


def test_a_value_that_cannot_be_built_is_refused_before_the_first_runs(tmp_path):
    def run(part: Sweep, place: Path) -> Search:
        raise AssertionError

    policy = EachSetting(Once, {"schedule.name": ("constant", "foo")})
    with pytest.raises(ConfigError, match="unknown schedule 'foo'"):
        follow(policy, small_sweep(), tmp_path, run, Limits())
    with pytest.raises(ConfigError, match="clip_norm must be a finite number"):
        EachSetting(Once, {"clip_norm": ("1", "-1")}).check(small_sweep(), limits=Limits(), source=None)


def test_a_dry_run_shows_each(tmp_path):
    policy = EachSetting(Once, {"schedule.warmup_steps": ("5", "20")})
    report = policy.preview(small_sweep(), tmp_path / "x", None, 1)
    assert [content["output"] for content in report.content["sweeps"]] == [
        str(tmp_path / "x-schedule.warmup_steps=5"), str(tmp_path / "x-schedule.warmup_steps=20")
    ]  # fmt: skip
    assert "step times are those of the sweep without the values of --axis" in policy.not_counted(report, Limits())
