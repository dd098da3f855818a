"""Plans of batch-size schedules: against runs whose every schedule is known, and what they refuse."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.estimate.prior import StepsCurve
from analysis.present import to_json
from analysis.present.figures import figures_of
from analysis.quantities import UNKNOWN, Quantity
from analysis.read.throughput import Assumed, StepTime, StepTimeTable
from cbs.errors import ConfigError, ResultsError
from extensions.schedules.plan import planning
from extensions.schedules.plan.phases import PhaseEstimate, PhaseSource, along, lower_ends, steps_of
from extensions.schedules.plan.planning import of_sweep, plan_schedule
from extensions.schedules.plan.plans import PlanOutcome, PlanRequest, SchedulePlan
from extensions.schedules.plan.stages import stages
from extensions.schedules.tests.growing import TARGET, Growing, growing_sweep
from extensions.schedules.tests.test_plan_sources import CONFIG, inside
from extensions.schedules.trainers import exported
from tests.factories import Truth, sweep

TRUTH = Growing(power=1.0, noise=0.03)
SIZES = (4, 12, 32, 90, 256)
LRS = tuple(1e-3 * 2.0**power for power in range(6))


def phase(progress: float, scale: float, interval: tuple[float, float] | None = None) -> PhaseEstimate:
    """A hyperbola; draws at the ends of the interval."""
    scales = np.array([scale, *(interval or ())])
    curve = StepsCurve(np.full(len(scales), math.log(progress)), np.log(scales), np.ones(len(scales)))
    return PhaseEstimate(where="", critical=Quantity(scale, interval or (None, None)), log_steps=curve.log_steps)


def shorter(phase: PhaseEstimate, factor: float) -> PhaseEstimate:
    """A phase of fewer steps at every batch size."""
    return dataclasses.replace(phase, log_steps=lambda sizes: phase.log_steps(sizes) - math.log(factor))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return growing_sweep(tmp_path_factory.mktemp("growing"), TRUTH, batch_sizes=SIZES, lrs=LRS)


@functools.cache
def source_of(folder: Path) -> PhaseSource:
    (source,) = of_sweep(folder, CONFIG, None, None)
    return source


def planned(folder: Path, **ask: Any) -> SchedulePlan:
    (plan,) = plan_schedule([source_of(folder)], PlanRequest(**ask), CONFIG).plans
    return plan


def test_a_phase_has_the_critical_batch_size_that_holds_in_it(folder: Path) -> None:
    (source,) = of_sweep(folder, CONFIG, [2.6, 2.3], None)
    # where the loss is passed, from the law of the loss; between them the mean noise scale
    ends = TRUTH.end * (np.array([1.6, 1.3]) / (TARGET.value - 1.0)) ** (-1 / 0.3)
    truth = [TRUTH.level / TRUTH.end * middle for middle in (ends[0] / 2, ends.mean())]
    assert [found.critical.value for found in source.phases] == [pytest.approx(value, rel=0.1) for value in truth]
    # that of the whole run is smaller than what holds at its end
    assert source.critical < source.phases[-1].critical.interval[0]  # type: ignore[operator]


def named(plan: SchedulePlan, name: str) -> PlanOutcome:
    return next(outcome for outcome in plan.outcomes if outcome.name == name)


def test_a_plan_of_any_rule_has_the_intrinsic_time_of_the_last_batch_size(folder: Path) -> None:
    plan, source = planned(folder), source_of(folder)
    starts, sizes = zip(*plan.table, strict=True)
    before, seen = [], 0
    for start, size in zip(starts[1:], sizes, strict=False):
        before.append(-(-(start - seen) // size))
        seen += before[-1] * size
    last = math.exp(source.whole.log_steps(np.array([sizes[-1]]))[0, 0])
    of_law = np.exp(source.law.log_lrs(sizes)[0])
    for name, ratios in (
        ("flat", np.ones(len(sizes))),
        ("square root", (np.array(sizes) / sizes[-1]) ** 0.5),
        ("measured law", of_law / of_law[-1]),
    ):
        steps = last
        for count, ratio, size in zip(before, ratios, sizes, strict=False):
            above = 1 - size / sizes[-1] / ratio  # its share of the noise that the last stage has not
            steps += count * (1 - (1 - 0.25 * above) * ratio)
        outcome = named(plan, f"plan, {name}")
        assert outcome.steps.value == pytest.approx(steps, rel=1e-6), name
        examples = seen + (steps - sum(before)) * sizes[-1]
        assert outcome.examples.value == pytest.approx(examples, rel=1e-6), name
        # against the constant batch size of as many steps, by the curve of the whole run
        every = np.geomspace(*source.measured, 20_001)
        same = every[np.flatnonzero(np.exp(source.whole.log_steps(every)[0]) <= steps)[0]]
        assert outcome.examples_saved.value == pytest.approx(1 - examples / (same * steps), abs=2e-3), name
        assert None not in outcome.examples_saved.interval
    # the last batch size has its own best rate, which those steps were taken at, whatever the law says of it
    best = math.exp(np.interp(math.log(sizes[-1]), *np.log(np.array(source.best_lrs)).T))
    assert best != pytest.approx(of_law[-1], rel=1e-5)
    flat = named(plan, "plan, flat")
    assert flat.recommended
    assert flat.lrs == pytest.approx([best] * len(sizes))
    assert plan.stages[0].lr.value == pytest.approx(best)
    assert named(plan, "plan, square root").lrs[0] == pytest.approx(best * (sizes[0] / sizes[-1]) ** 0.5)
    assert named(plan, "plan, measured law").lrs == pytest.approx(best * of_law / of_law[-1])


def test_where_the_learning_rate_falls_nothing_is_promised(folder: Path) -> None:
    falling = dataclasses.replace(source_of(folder), decays=True)
    (plan,) = plan_schedule([falling], PlanRequest(), CONFIG).plans
    assert plan.lr_rule == "ratio"
    assert plan.stages[-1].lr_factor.value == pytest.approx(plan.stages[-1].batch_size / plan.stages[0].batch_size)
    assert all(outcome.examples_saved == UNKNOWN for outcome in plan.outcomes)
    assert "the learning rate of these runs falls" in plan.verdict
    assert plan.verdict.endswith("as runs at a constant learning rate do")


def test_nothing_is_promised_where_the_rate_of_the_last_batch_size_is_not_known(folder: Path) -> None:
    source = source_of(folder)
    last = planned(folder).table[-1][1]
    short = dataclasses.replace(source, best_lrs=tuple(pair for pair in source.best_lrs if pair[0] < last))
    (plan,) = plan_schedule([short], PlanRequest(), CONFIG).plans
    assert all(outcome.examples_saved == outcome.steps == UNKNOWN for outcome in plan.outcomes[:-1])
    assert "that of its last batch size lies outside the optima that were found" in plan.verdict


def test_a_screen_answers_for_each_of_several_optimizers(folder: Path) -> None:
    source = source_of(folder)
    last = planned(folder).table[-1][1]
    short = tuple(pair for pair in source.best_lrs if pair[0] < last)
    known = [dataclasses.replace(source, optimizer=name) for name in ("adamw", "lion", "muon")]
    unknown = [dataclasses.replace(source, optimizer=name, best_lrs=short) for name in ("sgd", "shampoo")]
    plans = plan_schedule([*known, *unknown], PlanRequest(), CONFIG)
    lines = str(plans).splitlines()
    assert len(lines) <= 15
    for plan, line in zip(plans.plans, lines[3:], strict=False):
        cells = line.split()
        assert cells[0] == plan.source.optimizer
        assert [int(cell.split(":")[1]) for cell in cells if ":" in cell] == [size for _, size in plan.table]
        assert str(plan.outcomes[-1].batch_sizes[0]) in cells
    saved = plans.plans[0].outcomes[0].examples_saved
    shown = [round(100 * share) for share in (saved.value, *saved.interval)]  # type: ignore[operator]
    assert lines[3].endswith("{} [{}, {}]".format(*shown))
    assert lines[6].endswith("–")
    assert "sgd, shampoo: what the plan saves is not known" in " ".join(lines)


def test_a_last_stage_that_comes_too_late_is_no_promise(folder: Path) -> None:
    source = source_of(folder)
    assert source.whole is not None
    sooner = dataclasses.replace(source, whole=shorter(source.whole, 20.0))
    (plan,) = plan_schedule([sooner], PlanRequest(), CONFIG).plans
    assert named(plan, "plan, flat").steps == UNKNOWN
    assert "to bound the savings" in plan.verdict


def test_sizes_divide_grow_and_stay_below_the_cap(folder: Path) -> None:
    plan = planned(folder, divisible_by=6, max_batch_size=30)
    sizes = [size for _, size in plan.table]
    assert all(size % 6 == 0 for size in sizes)
    assert sizes == sorted(sizes)
    assert sizes[-1] == 30
    assert any("30 is the largest that is allowed" in note for note in plan.notes)
    # a dearer step asks for larger batches
    assert sum(size for _, size in planned(folder, price=100.0).table) > sum(size for _, size in planned(folder).table)


def test_the_best_size_is_the_root_of_price_times_scale_and_its_lower_end_decides() -> None:
    phases, price, sizes = [phase(1.0, 16.0, (9.0, 25.0)), phase(2.0, 400.0, (100.0, 900.0))], 25.0, np.arange(1.0, 200)
    best = sizes[(steps_of(phases, sizes) * (sizes + price)).argmin(axis=2)]
    assert best.tolist() == [[20.0, 100.0], [15.0, 50.0], [25.0, 150.0]]
    assert lower_ends(best, 0.95).tolist() == [15.0, 50.0]
    assert lower_ends(best[:1], 0.95).tolist() == [20.0, 100.0]
    # a plan never shrinks a batch
    assert lower_ends(best[:, ::-1], 0.95).tolist() == [50.0, 50.0]


def test_a_table_is_walked_as_step_by_step() -> None:
    scales = 10.0 * np.sqrt(np.arange(400) + 0.5)
    phases = [phase(1.0, scale) for scale in scales]
    starts, sizes, seen, steps = (0, 700, 2500), (8, 40, 20), 0.0, 0.0
    for scale in scales:
        stage = sum(seen >= start for start in starts) - 1
        seen, steps = seen + sizes[stage] + scale, steps + 1 + scale / sizes[stage]
    course = along(phases, starts, sizes)
    assert course.steps[0] == pytest.approx(steps, rel=0.01)
    assert course.examples[0] == pytest.approx(seen, rel=0.01)
    # 24/25 where the noise scale grows as the root of the progress, whatever the price (McCandlish et al., appendix D)
    for price in (5.0, 500.0):
        best = np.sqrt(price * scales)
        places = np.cumsum([0.0, *(best + scales)[:-1]])
        found = along(phases, places, best)
        gamma = (found.steps[0] / len(scales) - 1) * (found.examples[0] / scales.sum() - 1)
        assert gamma == pytest.approx(0.96, abs=0.002)


def test_the_learning_rate_is_flat_or_by_what_is_given(folder: Path) -> None:
    assert {stage.lr_factor.value for stage in planned(folder).stages} == {1.0}
    plan = planned(folder, lr_exponent="measured law")
    first, last = plan.stages[0], plan.stages[-1]
    assert inside(last.lr_factor, (last.batch_size / first.batch_size) ** 0.4)
    # 1 / (1 + 30/B): from the first batch size on, not a power
    source = source_of(folder)
    assert source.law is not None
    curves = np.repeat([[0.0], [math.log(30.0)], [1.0]], 201, axis=1)
    saturating = dataclasses.replace(source, law=dataclasses.replace(source.law, curves=curves))
    (other,) = plan_schedule([saturating], PlanRequest(lr_exponent="measured law"), CONFIG).plans
    ratio = (1 + 30 / first.batch_size) / (1 + 30 / last.batch_size)
    assert other.stages[-1].lr_factor.value == pytest.approx(ratio)
    assert other.stages[-1].lr.value == pytest.approx(source.best_lr(last.batch_size).value)
    assert other.stages[0].lr.value == pytest.approx((source.best_lr(last.batch_size).value or 0.0) / ratio)
    for power in (0.25, 0.5):
        given = planned(folder, lr_exponent=power)
        assert given.stages[-1].lr_factor.value == pytest.approx((last.batch_size / first.batch_size) ** power)
        assert sum(outcome.recommended for outcome in given.outcomes) == 1
    bare = dataclasses.replace(source, law=None)
    with pytest.raises(ConfigError, match="no law of the learning rate was measured"):
        plan_schedule([bare], PlanRequest(lr_exponent="measured law"), CONFIG)
    # without a law the best rate of the nearest batch size is the base
    (near,) = plan_schedule([bare], PlanRequest(), CONFIG).plans
    lrs = [lr for _, lr in source.best_lrs]
    assert min(lrs) <= (near.stages[0].lr.value or 0.0) <= max(lrs)


def test_hours_are_those_of_the_steps_and_decide_where_they_are_known(folder: Path) -> None:
    # a step of 0.25 s + 0.01 s an example is worth 25 examples
    times = Assumed(examples_per_second=100.0, latency=0.25)
    timed, priced = planned(folder, throughput=times), planned(folder, price=25.0)
    assert timed.table == priced.table
    plan = timed.outcomes[0]
    early = sum(s.steps * s.batch_size for s in timed.stages[:-1])
    counts = [s.steps for s in timed.stages[:-1]]
    counts.append(((plan.examples.value or 0.0) - early) / timed.stages[-1].batch_size)  # type: ignore[arg-type]
    hours = sum(n * (0.25 + s.batch_size / 100) for n, s in zip(counts, timed.stages, strict=True)) / 3600
    assert plan.hours.value == pytest.approx(hours, rel=1e-6)
    assert inside(timed.outcomes[0].hours, hours)
    assert priced.outcomes[0].hours == UNKNOWN
    sizes = (4, 32, 256)
    rows = [
        StepTime(batch_size=size, seconds=0.25 + size / 100, interval=(size / 100, 0.5 + size / 50), repetitions=5)
        for size in sizes
    ]
    sure, noisy = (
        planned(folder, throughput=StepTimeTable(tuple(each))).outcomes[0].hours
        for each in ([dataclasses.replace(row, interval=None) for row in rows], rows)
    )
    assert noisy.value == sure.value
    assert noisy.interval[0] < 0.9 * sure.interval[0] < 1.1 * sure.interval[1] < noisy.interval[1]


def test_a_budget_beyond_what_was_measured_is_said_and_far_beyond_refused(folder: Path) -> None:
    whole = planned(folder).budget
    longer = planned(folder, budget=2 * whole)
    assert any("nothing is known" in note for note in longer.notes)
    before, after = planned(folder).stages[-1], longer.stages[-1]
    assert after.steps == pytest.approx(before.steps + whole / after.batch_size, abs=2)
    shorter = planned(folder, budget=whole // 2)
    assert any("ends before the last phase" in note for note in shorter.notes)
    assert sum(s.steps * s.batch_size for s in shorter.stages) <= whole // 2
    with pytest.raises(ConfigError, match="measure further"):
        planned(folder, budget=5 * whole)
    with pytest.raises(ConfigError, match="holds no batch"):
        planned(folder, budget=4)
    # a stage that no step is in is none
    second = planned(folder).stages[1]
    assert [stage.start for stage in planned(folder, budget=second.start + 1).stages] == [0]


def test_a_phase_by_default_that_is_too_short_joins_its_neighbour(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(planning, "_shares", lambda *_: [9.0, 8.9, 2.6])
    (source,) = of_sweep(folder, CONFIG, None, None)
    assert [phase.where.split()[-1] for phase in source.phases] == ["8.9", "2.6", "2"]


def test_what_was_not_measured_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="one target does not show"):
        of_sweep(folder, CONFIG, [2.0], None)
    with pytest.raises(ResultsError, match="no step lies between"):
        of_sweep(folder, CONFIG, [9.0, 8.9, 2.0], None)
    with pytest.raises(ConfigError, match="these results have adamw"):
        of_sweep(folder, CONFIG, None, "muon")
    rare = growing_sweep(tmp_path / "rare", TRUTH, batch_sizes=SIZES, lrs=LRS[1::2], seeds=1, growth=1e4)
    with pytest.raises(ResultsError, match="between two evaluations at no batch size: runs were past the target"):
        of_sweep(rare, CONFIG, None, None)
    sweep(tmp_path / "two", {"adamw": Truth()}, batch_sizes=(8, 64), lrs=(4e-3,))
    with pytest.raises(ResultsError, match="needs 3 or more"):
        of_sweep(tmp_path / "two", CONFIG, [2.8, 2.4], None)
    for ask, said in (
        ({"divisible_by": 1000}, "no multiple of 1000"),
        ({"max_batch_size": 31, "divisible_by": 2}, "not a multiple of 2, as sizes"),
        ({"rule": "cube"}, "one of price, doubling"),
        ({"rule": "doubling"}, "starts from a batch size"),
        ({"rule": "doubling", "first_batch_size": 8.5}, "must be a whole number"),
        ({"rule": "doubling", "first_batch_size": 1024}, "is not between 4 and 256"),
        ({"price": 0.0}, "above 0"),
        ({"lr_exponent": 2.0}, "between -1 and 1"),
        ({"lr_exponent": "cube"}, "must be law, or a number"),
    ):
        with pytest.raises(ConfigError, match=said):
            planned(folder, **ask)  # type: ignore[arg-type]


def test_a_plan_is_exported_as_it_is_shown(folder: Path) -> None:
    plans = plan_schedule([source_of(folder)], PlanRequest(divisible_by=4), CONFIG)
    (plan,) = plans.plans
    for trainer in ("megatron", "levanter", "torchtitan"):
        text, notes = exported(plans, trainer)
        shown = stages(text, tokens_per_example=32)
        assert [(s.batch_size, s.steps) for s in shown.stages] == [(s.batch_size, s.steps) for s in plan.stages]
        assert any("learning rate of the first stage" in note for note in notes)
        # at the flat rate there is none to take
        assert not any("takes no factor of the learning rate" in note for note in notes)
    (root,) = plan_schedule([source_of(folder)], PlanRequest(divisible_by=4, lr_exponent=0.5), CONFIG).plans
    notes = exported(dataclasses.replace(plans, plans=(root,)), "megatron")[1]
    assert any("takes no factor of the learning rate" in note for note in notes)
    with pytest.raises(ConfigError, match="choose with --optimizer"):
        exported(dataclasses.replace(plans, plans=(plan, plan)), "megatron")


def test_table_json_and_figure_agree(
    folder: Path, run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    plans = plan_schedule([source_of(folder)], PlanRequest(), CONFIG)
    (plan,) = plans.plans
    (told,) = to_json(plans)["plans"]
    json.dumps(to_json(plans), allow_nan=False)
    assert [(entry["start"], entry["batch_size"]) for entry in told["stages"]] == plan.table
    (picture,) = figures_of(plans)
    drawn = picture.table[picture.table["kind"] == "stage"]
    assert drawn[["first", "value"]].to_numpy().tolist() == [list(row) for row in plan.table]
    code, out, err = run("schedule", "plan", folder, "--resamples", 200, "-o", tmp_path / "made", "--figures", "none")
    assert (code, err) == (0, "")
    assert "saves" in out
    assert "from token" in out
    assert f"next: cbs report {folder}" in out
    code, out, err = run("schedule", "plan", folder, "--resamples", 200, "--export", "megatron")
    assert (code, out.split('"')[0]) == (0, "--step-batch-size-schedule ")
    assert "learning rate of the first stage" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("FOLDER", "--rule", "price(first=3)"), "takes step_price=NUMBER and nothing else"),
        (("FOLDER", "--rule", "cube"), "one of price, doubling"),
        (("FOLDER", "--tokens-per-example", 4), "examples of these results have 32"),
        (("FOLDER", "--tokens-per-example", 0), "at least 1"),
        (("FOLDER", "--ratio", 2), "goes with a noise_scale.json"),
        (("x.json", "--ratio", -1), "above 0"),
        (("x.json", "--target", 2), "goes with a results folder"),
        (("FOLDER", "--export", "nemo"), "unknown trainer"),
        (("FOLDER", "--budget", "1T"), "measure further"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: tuple[Any, ...], said: str, folder: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    given = [folder if part == "FOLDER" else part for part in arguments]
    code, out, err = run("schedule", "plan", *given, "--resamples", 100)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_what_a_plan_loses_is_in_the_interval(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {}
    for lost in (0.0, 1.0):
        monkeypatch.setattr("extensions.schedules.plan.outcome.LOST", lost)
        (plan,) = plan_schedule([source_of(folder)], PlanRequest(lr_exponent=1.0), CONFIG).plans
        outcomes[lost] = plan.outcomes
    for none, some in zip(outcomes[0.0][:-1], outcomes[1.0][:-1], strict=True):
        (low, high), (lower, higher) = none.steps.interval, some.steps.interval
        if none.recommended:  # eta/B stays as it is: nothing is forgotten, and nothing has to be
            assert some.steps.value == pytest.approx(none.steps.value)
        else:
            assert (some.steps.value or 0.0) > (none.steps.value or 0.0)
            assert higher - high > 1.5 * (lower - low)  # type: ignore[operator]
    monkeypatch.setattr("extensions.schedules.plan.outcome.OFF", 0.0)
    (plan,) = plan_schedule([source_of(folder)], PlanRequest(lr_exponent=1.0), CONFIG).plans
    (sure,) = (outcome.steps.interval for outcome in plan.outcomes if outcome.recommended)
    (usual,) = (outcome.steps.interval for outcome in outcomes[1.0] if outcome.recommended)
    assert usual[0] < 0.99 * sure[0]  # type: ignore[operator]
    assert usual[1] > 1.005 * sure[1]  # type: ignore[operator]
