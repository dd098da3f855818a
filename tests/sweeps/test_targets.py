"""Targets beside the first, and objectives."""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import analyze
from analysis.config import AnalysisConfig
from cbs.errors import ConfigError
from cbs.registry.choices import parse_choice
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from sweeps.launching.launch import resolve
from sweeps.launching.loop import follow
from sweeps.launching.policies import Once, parts
from sweeps.outlook.report import outcome_lines, outcome_report
from sweeps.search.forecast import End, play
from sweeps.search.objective import MATTERS, FinalMetric, objective_of
from sweeps.search.search import Limits, Search
from sweeps.search.study import outcome
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.overrides import override
from sweeps.spec.spec import Sweep
from tests.factories import quadratic
from tests.sweeps.alone import swept, without_ray
from tests.sweeps.simulation import small_sweep, true_best_lr

CONFIG = quadratic("sgd", {"dimension": 10}, target=1.0, lr=0.02, batch_size=8, seed=0, max_steps=2000)
NORM = Target(metric="gradient_norm", value=0.2)
SHIFT = 4.0  # Factor between the best learning rates of the two metrics


@pytest.mark.parametrize("order", ["own first", "further first"])
def test_a_trial_goes_on_until_all_are_reached_and_each_has_the_steps_of_a_trial_to_it_alone(order: str) -> None:
    value = 1.0 if order == "own first" else 0.05
    every_step = EvaluationPlan(growth=1.0001, far_growth=1.0001)
    own = dataclasses.replace(CONFIG, target=Target(metric="validation_loss", value=value), evaluation=every_step)
    norm = dataclasses.replace(NORM, value=0.2 if order == "own first" else 1.0)
    both = run_trial(dataclasses.replace(own, further_targets=(norm,)))
    alone = run_trial(own), run_trial(dataclasses.replace(own, target=norm))
    assert both.status is TrialStatus.REACHED
    assert [each.status for each in alone] == [TrialStatus.REACHED] * 2
    assert both.final_step == max(each.final_step for each in alone)
    assert min(each.final_step for each in alone) < 0.8 * both.final_step
    for target, single in zip(both.config.targets, alone, strict=True):
        assert both.steps_to(target) == single.steps_to_target
    assert both.steps_to(own.target) == both.steps_to_target


def test_one_that_is_never_reached_leaves_the_steps_to_the_other() -> None:
    result = run_trial(
        dataclasses.replace(CONFIG, max_steps=300, further_targets=(Target(metric="gradient_norm", value=0.0),))
    )
    assert result.status is TrialStatus.BUDGET_EXHAUSTED
    assert "validation_loss < 1 and gradient_norm < 0 not reached" in result.message
    assert result.steps_to_target is not None
    assert result.steps_to(result.config.further_targets[0]) is None


def test_a_configuration_says_them_and_is_what_it_was_without(tmp_path: Path) -> None:
    one, other = NORM, Target(metric="accuracy", value=0.9, direction="above")
    config = dataclasses.replace(CONFIG, further_targets=(one, other))
    assert config.further_targets == (other, one)
    assert TrialConfig.from_dict(config.to_dict()) == config
    assert config.fingerprint != CONFIG.fingerprint
    assert "further_targets" not in CONFIG.to_dict()
    with pytest.raises(ConfigError, match="two targets have the same metric"):
        dataclasses.replace(CONFIG, further_targets=(Target(metric="validation_loss", value=0.1),))
    with pytest.raises(ConfigError, match="has no further targets"):
        dataclasses.replace(CONFIG, stops_at_target=False, further_targets=(NORM,))


def test_a_sweep_takes_them_by_setting() -> None:
    asked = override(small_sweep(), ["target.gradient_norm=0.5", "target.gradient_norm=0.2"])
    assert asked.trial.further_targets == (NORM,)
    assert asked.prune_factor is None
    assert [part.judged for part in parts(asked)] == [asked.target, NORM]
    assert parts(parts(asked)[1]) == [parts(asked)[1]]
    assert {part.protocol_fingerprint for part in parts(asked)} == {asked.protocol_fingerprint}
    assert asked.protocol_fingerprint != small_sweep(prune_factor=None).protocol_fingerprint
    assert "further_targets" not in small_sweep().protocol()
    resolved = resolve(override(small_sweep(), ["target.accuracy=0.9"]))
    assert resolved.trial.further_targets[0].direction == resolved.target.direction
    with pytest.raises(ConfigError, match=r"expected the value of gradient_norm to train to, got 'low'"):
        override(small_sweep(), ["target.gradient_norm=low"])


def simulated(config: TrialConfig) -> TrialResult:
    """A trial whose second metric passes its target at another learning rate the soonest."""
    steps = [
        (100.0 + 3000.0 / config.batch_size)
        * math.exp(0.25 * math.log(config.lr / (factor * true_best_lr(config))) ** 2)
        for factor in (1.0, SHIFT)
    ]
    rows = []
    for step in (0, *(round(1.04**power * 20) for power in range(250))):
        value, other = (2.0 - step / each for each in steps)
        row = Measurement(
            step=step, examples=step * config.batch_size, value=value, train_loss=0.0, lr=config.lr,
            others={"second": other},
        )  # fmt: skip
        rows.append(row)
        if step >= config.max_steps or max(value, other) < 1.0:
            break
    crossing = config.target.crossing([row.step for row in rows], [row.value for row in rows])
    status = TrialStatus.REACHED if max(value, other) < 1.0 else TrialStatus.BUDGET_EXHAUSTED
    return TrialResult(
        config=config, status=status, steps_to_target=crossing, evaluations=rows, steps={}, workload=None,
        directions={"second": "below"},
    )  # fmt: skip


def searched(asked: Sweep, there: list[TrialResult]) -> Search:
    search = Search(asked, there)
    while (config := search.next()) is not None:
        search.add(simulated(config))
    return search


def test_each_target_has_a_search_of_its_own_and_an_answer_from_the_same_trials(tmp_path: Path) -> None:
    asked = small_sweep(optimizers=(Choice(name="adamw"),), seeds=(0,), max_steps=20_000)
    asked = asked.replace(further_targets=(Target(metric="second", value=1.0),))
    first, second = parts(asked)
    searches = [searched(first, [])]
    searches.append(searched(second, [*searches[0].trials()]))
    searches.append(searched(first, [*searches[1].trials()]))
    trials = {trial.trial_id: trial for search in searches for trial in search.trials()}
    for search, factor in zip(searches, (1.0, SHIFT, 1.0), strict=True):
        for study in search.studies:
            config = search.sweep.trial_at(search.cells()[0], 1.0)
            best = factor * true_best_lr(dataclasses.replace(config, batch_size=study.batch_size))
            assert search.studies[study].best[0] == pytest.approx(best, rel=0.5)
    lines = outcome_lines(outcome_report(searches[2], tmp_path, searches[1:2]))
    titles = [line for line in lines if line.startswith("Steps to")]
    assert ["validation_loss < 1" in titles[0], "second < 1" in titles[1], len(titles)] == [True, True, 2]
    assert lines[-1].endswith("--target second")

    store = Store(tmp_path)
    store.create()
    store.write_manifest({"name": "two", "protocol": asked.protocol()})
    for trial in trials.values():
        store.save(trial)
    fast = AnalysisConfig(resamples=100)
    own, other = analyze(tmp_path, fast), analyze(tmp_path, fast, metric="second")
    assert "sweep two: its trials continued to second < 1: see --target second" in own.notes
    assert str(other.answers[0].target) == "second < 1"
    for found, factor in ((own, 1.0), (other, SHIFT)):
        for point in found.answers[0].points:
            config = dataclasses.replace(asked.trial_at(searches[0].cells()[0], 1.0), batch_size=point.batch_size)
            assert point.best_lr == pytest.approx(factor * true_best_lr(config), rel=0.5)
            assert point.steps_to_target == pytest.approx(100 + 3000 / point.batch_size, rel=0.06)
            assert point.at_grid_edge is False


def test_a_trial_that_missed_a_target_is_as_near_as_that_metric_was() -> None:
    second = Target(metric="second", value=1.0)
    asked = small_sweep(further_targets=(second,), max_steps=21, max_examples=0)
    result = simulated(asked.trial_at(Search(asked).cells()[0], 1e-4))
    shares = [outcome(result, objective_of(part)).distance for part in parts(asked)]
    for share, target in zip(shares, (result.config.target, second), strict=True):
        first, *_, last = result.values(target.metric)
        assert share == pytest.approx(target.distance(last) / target.distance(first))
    assert shares[0] != pytest.approx(shares[1])


def test_it_runs(tmp_path: Path) -> None:
    asked = small_sweep(
        workload=CONFIG.workload, optimizers=(Choice(name="sgd"),), batch_sizes=(8,), seeds=(0,), lrs=(0.01, 0.02),
        target=CONFIG.target, further_targets=(dataclasses.replace(NORM, direction="above"),), probe=None,
    )  # fmt: skip
    resolved = resolve(asked)
    assert resolved.trial.further_targets == (NORM,)
    with without_ray():
        follow(Once(), resolved, tmp_path, swept, Limits())
    stored = [*Store(tmp_path).results()]
    assert len(stored) == 2
    for trial in stored:
        assert trial.status is TrialStatus.REACHED
        assert min(trial.values("gradient_norm")[1:]) < 0.2
        assert trial.steps_to_target < trial.steps_to(NORM)


LOSS = Target(metric="loss", value=3.0)
ACCURACY = Target(metric="accuracy", value=0.9, direction="above")
ADAMW = {"optimizers": (parse_choice("adamw"),)}


def equal_budget(**changes: object) -> Sweep:
    changes = {"budgets": (200_000,), "seeds": (0, 1, 2)} | ADAMW | changes
    return small_sweep(schedule=ScheduleRule(warmup_steps=1), **changes)


def trial(curve: dict[int, float], status: TrialStatus = TrialStatus.BUDGET_EXHAUSTED) -> TrialResult:
    """At batch size 4."""
    search = Search(equal_budget(batch_sizes=(4,)))
    config = search.next()
    rows = [Measurement(step=s, examples=4 * s, value=v, train_loss=v, lr=1.0) for s, v in curve.items()]
    return TrialResult(config=config, status=status, steps_to_target=None, evaluations=rows, steps={}, workload=None)


@given(value=st.floats(-1e6, 1e6), within=st.floats(1e-4, 1.0), target=st.sampled_from([LOSS, ACCURACY]))
def test_the_metric_comes_back_from_its_cost_and_no_cost_overflows(value, within, target):
    objective = FinalMetric(target, 4000, within)
    cost = objective.cost(trial({0: 10.0, 1000: value}))
    assert 0 < cost < math.inf
    assert objective.amount(cost) == pytest.approx(value, rel=1e-6, abs=1e-6 * within)
    worse = value + within if target is LOSS else value - within
    log_ratio = math.log(objective.cost(trial({0: 10.0, 1000: worse})) / cost)
    assert log_ratio > 0 or abs(value) > 1e4 * within
    if abs(target.distance(value)) < within:
        assert log_ratio == pytest.approx(MATTERS, rel=1e-6)


def test_a_smaller_budget_is_read_off_the_curve_in_log_examples():
    end = trial({0: 10.0, 100: 4.0, 400: 3.0, 1000: 2.0})
    assert end.value_at(800) == pytest.approx(3.5)
    assert end.value_at(4000) == 2.0
    assert FinalMetric(LOSS, 800, 0.01).amount(FinalMetric(LOSS, 800, 0.01).cost(end)) == pytest.approx(3.5)


def by_value(best, value):
    """How trials end whose metric after the budget is ``value`` and more beside the learning rate ``best``."""

    def end(config):
        gap = math.log(config.lr / best(config.batch_size))
        if gap > math.log(12.0):
            return End(20.0, reached=False, distance=math.inf)
        worse = value(config) + 0.05 * gap**2
        return End(config.max_steps, reached=False, distance=worse - 1.0)

    return end


@pytest.mark.parametrize("best", [1e-6, 4e-3, 0.3])
@pytest.mark.parametrize("direction", ["below", "above"])
def test_the_best_metric_is_found_however_far_and_gets_every_seed(best, direction):
    target = Target(metric="metric", value=1.0, direction=direction)
    search = Search(equal_budget(target=target, within=0.01))
    played = play(search, by_value(lambda size: best * size**0.5, lambda config: 1.2 + 0.001 * (config.seed - 1)))
    assert not any(result.status is TrialStatus.PRUNED for result in played.results)
    for study in search.studies.values():
        lr, cost = study.best
        assert study.interior
        assert abs(math.log(lr / (best * study.batch_size**0.5))) < math.log(1.6)
        assert not any(map(math.isnan, study.table()[study.lrs.index(lr)]))
        sign = 1 if direction == "below" else -1
        assert search.objective.amount(cost) == pytest.approx(1.0 + sign * 0.2, abs=0.011)


def test_a_decay_ends_with_its_budget_and_every_budget_has_its_own_trials():
    decaying = equal_budget(budgets=(100_000, 400_000)).replace(schedule=ScheduleRule(name="cosine", warmup_steps=1))
    trials = [Search(part).next() for part in parts(decaying)]
    assert [trial.schedule.decay_examples for trial in trials] == [100_000, 400_000]
    assert [trial.max_examples for trial in trials] == [100_000, 400_000]
    assert {trial.stops_at_target for trial in trials} == {False}
    said = replace(decaying.schedule, decay_examples=50_000)
    assert len({Search(part).next().trial_id for part in parts(decaying.replace(schedule=said))}) == 1
