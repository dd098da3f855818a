"""Plans of batch-size schedules from a noise scale that was measured, a trial, or a curve of branched training."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from analysis.config import AnalysisConfig
from analysis.present import presentation
from analysis.quantities import UNKNOWN, Quantity
from cbs.errors import CbsError, ConfigError, DataError, ResultsError
from extensions.schedules.plan.of_trace import of_curve, of_trace
from extensions.schedules.plan.phases import along
from extensions.schedules.plan.planning import plan_schedule
from extensions.schedules.plan.plans import PlanRequest
from tests.factories import Truth, sweep

CONFIG = AnalysisConfig(resamples=100)


def inside(quantity: Quantity, value: float) -> bool:
    low, high = quantity.interval
    return low is not None and high is not None and low <= value <= high


def noise_run(**changes: Any) -> dict[str, Any]:
    """What cbs noise-scale writes of a run of 100 steps at batch size 16."""
    scale = {"value": 30.0, "low": 20.0, "high": 45.0, "confidence": 0.95} | changes
    phases = [
        {"first_step": 1, "last_step": 40, "first_examples": 0, "last_examples": 640,
         "noise_scales": {"l2": {"value": 8.0, "low": 6.0, "high": 11.0, "confidence": 0.95}}},
        {"first_step": 41, "last_step": 100, "first_examples": 640, "last_examples": 1600,
         "noise_scales": {"l2": scale}},
    ]  # fmt: skip
    about = {"example_unit": "sequence", "tokens_per_example": 32, "config": {"optimizer": {"name": "adamw"}}}
    return about | {"phases": phases}


def test_the_noise_scale_stands_in_for_the_critical_batch_size(tmp_path: Path) -> None:
    path = tmp_path / "noise_scale.json"
    path.write_text(json.dumps(noise_run()))
    source = of_trace(tmp_path, CONFIG, 2.0)
    assert [found.critical for found in source.phases] == [Quantity(16.0, (12.0, 22.0)), Quantity(60.0, (40.0, 90.0))]
    # the very run is what its own batch size takes
    course = along(of_trace(path, CONFIG).phases, [0], [16])
    assert (course.steps[0], course.examples[0]) == (pytest.approx(100), pytest.approx(1600))
    (plan,) = plan_schedule([source], PlanRequest(price=50.0), CONFIG).plans
    assert [size for _, size in plan.table] == [24, 48]  # the root of 50 times 12 and 40, in eights as the run had them
    assert any("stands in" in note and "2" in note for note in plan.notes)
    assert any("the learning rate was not measured" in note for note in plan.notes)
    assert plan.stages[-1].lr_factor == UNKNOWN


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"low": None}, ResultsError, "no lower end"),
        ({"high": None}, ResultsError, "no upper end"),
        ({"value": None}, ResultsError, "no value"),
        ({"low": -3.0}, ResultsError, "no lower end above 0: measure more"),
        ({"value": -5.0, "low": -9.0}, ResultsError, "no value above 0"),
        ({"value": 0.0, "low": 0.0}, ResultsError, "no value above 0"),
        ({"high": math.inf}, ResultsError, "no upper end above 0"),
        ({"value": 1e300, "high": 1e305}, ResultsError, "no value"),
        ({"value": "much"}, DataError, "is not what cbs noise-scale writes"),
    ],
)
def test_a_trace_without_an_interval_is_refused(
    changes: dict[str, Any], error: type[CbsError], said: str, tmp_path: Path
) -> None:
    (tmp_path / "noise_scale.json").write_text(json.dumps(noise_run(**changes)))
    with pytest.raises(error, match=said):
        of_trace(tmp_path, CONFIG)


@pytest.mark.parametrize(("ratio", "price"), [(1e300, 50.0), (1.0, 1e300), (1.0, 1e16)])
def test_batch_sizes_beyond_counting_are_refused(ratio: float, price: float, tmp_path: Path) -> None:
    (tmp_path / "noise_scale.json").write_text(json.dumps(noise_run()))
    with pytest.raises(ConfigError, match="too many to compare: is the price, or a critical batch size, right"):
        plan_schedule([of_trace(tmp_path, CONFIG, ratio)], PlanRequest(price=price), CONFIG)


def test_the_steps_of_a_trial_are_cut_where_there_are_intervals(tmp_path: Path) -> None:
    truth = Truth()
    store = sweep(tmp_path, {"adamw": truth}, batch_sizes=(16,), lrs=(3e-3,), moments=True)
    (name,) = store.trial_ids()
    source = of_trace(store.trials / name, CONFIG)
    assert len(source.phases) > 1
    # the signal falls from 2 to 1 along the run, the noise stays; the last phase is its second half
    assert inside(source.phases[-1].critical, truth.noise_trace / truth.grad_sq_norm / 1.25)
    for wrong, said in ((tmp_path, "neither a noise_scale.json"), (tmp_path / "x.parquet", "cannot read")):
        with pytest.raises(CbsError, match=said):
            of_trace(wrong, CONFIG)


CURVE = "examples,critical_batch_size,low,high,batch_size\n0,40,30,50,64\n1000,300,250,400,64\n4000,900,700,1200,64\n"


def test_a_curve_of_branched_training_gives_the_published_rule(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(CURVE)
    source = of_curve(path, CONFIG, end=9000, tokens_per_example=None, optimizer="adamw")
    course = along(source.phases, [0], [64])
    assert (course.steps[0], course.examples[0]) == (pytest.approx(9000 / 64), pytest.approx(9000))
    ask = PlanRequest(rule="doubling", first_batch_size=64, lr_exponent=0.5, budget=9000)
    (plan,) = plan_schedule([source], ask, CONFIG).plans
    assert [size for _, size in plan.table] == [64, 128, 512]
    factors = [stage.lr_factor.value for stage in plan.stages]
    assert factors == [1.0, pytest.approx(math.sqrt(2)), pytest.approx(math.sqrt(8))]
    assert not any("stays at the end" in note for note in plan.notes)
    (held,) = plan_schedule([source], dataclasses.replace(ask, max_batch_size=256), CONFIG).plans
    assert [size for _, size in held.table] == [64, 128, 256]
    assert "batch size 256 stays at the end, where the rule asks for more than is allowed" in held.notes
    path.write_text(CURVE.replace("700,1200", ","))
    bare = of_curve(path, CONFIG, end=9000, tokens_per_example=None, optimizer="adamw")
    (plan,) = plan_schedule([bare], PlanRequest(budget=9000), CONFIG).plans
    assert plan.outcomes[0].steps.interval == (None, None)
    assert any("the plan has no intervals" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("batch_size\n", "batch\n", "unknown column 'batch'"),
        (",batch_size", "", "no column 'batch_size'|more cells|cells"),
        ("1000,300", "0,300", "does not come after"),
        ("300,250", "200,250", "outside its own interval"),
        ("40,30", "-4,30", "must be above 0"),
        ("4000,", "9000,", "give a --budget beyond it"),
    ],
)
def test_a_curve_that_is_wrong_is_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text(CURVE.replace(old, new))
    with pytest.raises(DataError, match=said) as error:
        of_curve(tmp_path / "curve.csv", CONFIG, end=9000, tokens_per_example=None, optimizer=None)
    assert len(str(error.value).splitlines()) == 1


def test_an_optimizer_without_a_price_is_named_and_the_others_are_planned(tmp_path: Path) -> None:
    path = tmp_path / "noise_scale.json"
    path.write_text(json.dumps(noise_run()))
    priced = dataclasses.replace(of_trace(path, CONFIG), critical=40.0)
    unpriced = dataclasses.replace(priced, optimizer="sgd", critical=None)
    found = plan_schedule([priced, unpriced], PlanRequest(), CONFIG)
    assert [plan.source.optimizer for plan in found.plans] == ["adamw"]
    (said,) = found.notes
    assert said.startswith("sgd: the critical batch size is unknown")
    assert said in presentation(found).shown[0].lines
    with pytest.raises(ConfigError, match="no price of a step"):
        plan_schedule([unpriced, unpriced], PlanRequest(), CONFIG)
