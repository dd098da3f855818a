"""Answers for a metric that no trial stopped at: read off the same trials, or not, where they stopped too early."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.studies import STOPPED
from analysis.questions.compare.optimizers import compare
from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from tests.factories import Truth, sweep

FAST = AnalysisConfig(resamples=200)
INSIDE = Truth(lr_at_1=2e-3, lr_power=0.0, noise=0.02)
ASKED: dict[str, Any] = {"batch_sizes": (4, 16, 64, 256), "lrs": (1e-3, 2e-3, 4e-3), "seeds": 2}


def measured(folder: Path, value: Callable[[TrialResult, float], float], direction: str = "below") -> Path:
    """The sweep in a folder, with ``extra`` measured of every trial beside its own metric."""
    store = Store(folder)
    for trial in [*store.results()]:
        rows = [dataclasses.replace(row, others={"extra": value(trial, row.value)}) for row in trial.evaluations]
        store.save(trial.replace(evaluations=rows, directions={"extra": direction}))
    return folder


def steps(found: Any) -> list[float | None]:
    return [point.steps_to_target for point in found.answers[0].points]


@pytest.mark.parametrize("direction", ["below", "above"])
def test_a_metric_that_follows_the_targets_has_its_answer(tmp_path: Path, direction: str) -> None:
    sweep(tmp_path, {"adamw": INSIDE, "lamb": INSIDE}, **ASKED)
    sign = 1.0 if direction == "below" else -1.0
    measured(tmp_path, lambda _, value: sign * (value + 1.0), direction)
    own = analyze(tmp_path, FAST)
    found = analyze(tmp_path, FAST, targets=[sign * 3.4], metric="extra")
    assert steps(found) == pytest.approx(steps(own), rel=1e-6)
    assert found.answers[0].interval == pytest.approx(own.answers[0].interval, rel=1e-6)
    assert str(found.answers[0].target) == f"extra {'<' if direction == 'below' else '>'} {sign * 3.4:g}"
    assert found.answers[0].group.metric_unit == ""
    scope = compare(tmp_path, FAST, targets=[sign * 3.4], metric="extra").comparisons[0]
    assert scope.token_ratios[0].at == pytest.approx(compare(tmp_path, FAST).comparisons[0].token_ratios[0].at)


def test_a_metric_of_the_batches_trained_on_is_said_to_be_one_and_has_the_unit_of_a_loss(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": INSIDE}, **ASKED)
    found = analyze(tmp_path, FAST, targets=[2.4], metric="train_loss")
    assert found.answers[0].group.metric_unit == "nats/byte"
    assert any("measured on the training batches" in note for note in found.notes)
    assert not found.answers[0].group.evaluated
    assert load(tmp_path).groups[0].evaluated


def test_where_trials_stopped_before_one_could_win_there_is_no_answer(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": INSIDE}, **ASKED)
    # the best learning rate of the target ends a tenth short of this one, which slower ones pass later than that
    measured(tmp_path, lambda trial, value: value + (0.1 if trial.config.lr == 2e-3 else -0.01))
    found = analyze(tmp_path, FAST, targets=[2.4], metric="extra").answers[0]
    assert {point.status for point in found.points} == {STOPPED}
    assert found.verdict is Verdict.NOT_REACHED
    assert "validation_loss < 2.4, some of them too early" in found.advice
    assert "--set target.extra=2.4" in found.advice


def test_what_the_sweep_pruned_by_its_target_is_not_censored_by_it(tmp_path: Path) -> None:
    measured(sweep(tmp_path, {"adamw": INSIDE}, **ASKED).root, lambda _, value: value)
    assert [group.prune_factor for group in load(tmp_path).groups] == [1.3]
    assert [group.prune_factor for group in load(tmp_path, metric="extra").groups] == [None]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    measured(sweep(tmp_path, {"adamw": INSIDE}, **ASKED).root, lambda _, value: value)
    with pytest.raises(ConfigError, match=r"sweep 'synthetic' has no target of extra: give one with --target"):
        analyze(tmp_path, FAST, metric="extra")
    with pytest.raises(ResultsError, match=r"has no metric 'f1'; it has validation_loss, train_loss, extra"):
        analyze(tmp_path, FAST, metric="f1", targets=[1.0])
