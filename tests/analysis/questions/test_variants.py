"""Other metrics than the one that stopped the trials, and variants of one optimizer: kept apart by every question."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import analyze, present
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.studies import STOPPED
from analysis.present.figures import figures_of
from analysis.questions.compare.optimizers import compare
from analysis.read.results import load
from analysis.read.throughput import StepTime, StepTimeTable
from cbs.errors import ConfigError, ResultsError
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from tests.factories import Truth, sweep

SIZES, LRS = (4, 16, 64, 256), (1e-3, 2e-3, 4e-3)
NOISY = Truth(lr_at_1=2e-3, lr_power=0.0, noise=0.05, layers=1)
OTHER = dataclasses.replace(NOISY, min_steps=80.0, min_examples=4000.0)
FAST = AnalysisConfig(resamples=100)
VARIANTS = {"muon": NOISY, "muon(nesterov=false)": OTHER, "adamw(betas=[0.9, 0.95], eps=1e-6)": NOISY}
LABELS = {"muon", "muon(nesterov=false)", "adamw"}
TIMES = StepTimeTable(
    tuple(
        StepTime(batch_size=size, seconds=seconds * size, optimizer=name)
        for size in SIZES
        for name, seconds in (("muon", 0.1), ("muon(nesterov=false)", 0.2), ("adamw", 0.3))
    )
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("variants")
    sweep(root, VARIANTS, variants=True, batch_sizes=SIZES, lrs=LRS, growth=1.5, seeds=2, moments=True)
    store = Store(root)
    manifest = {key: value for key, value in store.manifest().items() if key != "schema_version"}
    command = "cbs sweep --optim muon --optim 'muon(nesterov=false)' --optim adamw --set 'adamw.betas=[0.9,0.95]'"
    store.write_manifest(manifest | {"runs": [{"command": command}]})
    return root


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [(None, "adamw"), ("muon", "muon"), ("muon(nesterov=False)", "muon(nesterov=false)"), ("adamw(eps=1e-6)", "adamw")],
)
def test_any_variant_is_the_reference(results: Path, asked: str | None, chosen: str) -> None:
    (comparison,) = compare(results, FAST, reference=asked).comparisons
    assert comparison.reference == chosen
    assert set(comparison.optimizers) == LABELS
    assert {ratio.optimizer for ratio in comparison.token_ratios} == LABELS - {chosen}


@pytest.mark.parametrize("asked", ["muon(nesterov=true)", "adamw(eps=1e-5)", "muon(", "sgd"])
def test_a_variant_that_is_not_there_is_no_reference(results: Path, asked: str) -> None:
    with pytest.raises(ConfigError, match=r"is not among the optimizers: .*muon\(nesterov=false\)"):
        compare(results, FAST, reference=asked)


def test_a_name_without_a_plain_variant_is_no_reference(tmp_path: Path) -> None:
    both = {"muon(nesterov=true)": NOISY, "muon(nesterov=false)": OTHER}
    sweep(tmp_path, both, variants=True, batch_sizes=SIZES, lrs=LRS[:1], growth=1.5)
    with pytest.raises(ConfigError, match="stands for several"):
        compare(tmp_path, FAST, reference="muon")


def test_every_question_tells_them_apart(results: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "analyze": analyze(results, FAST, targets=[2.4, 2.8], suggestions=True),
        "compare": compare(results, FAST, throughput=TIMES),
    }
    for name, found in asked.items():
        files = present.write(found, tmp_path / name, figures=None)
        tables = [pd.read_csv(file) for file in files if file.suffix == ".csv"]
        tables += [picture.table for picture in figures_of(found)]
        for column in (table["optimizer"] for table in tables if "optimizer" in table):
            assert set(column.dropna()) <= LABELS, name
        assert any("optimizer" in table and set(table["optimizer"]) == LABELS for table in tables), name
        told = set(strings(present.to_json(found, files=files)))
        assert {"muon", "muon(nesterov=false)"} <= told, name


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(part)


def test_what_is_suggested_runs_the_variant_it_is_about(results: Path) -> None:
    found = {entry.group.optimizer: entry.command for entry in analyze(results, FAST, suggestions=True).suggestions}
    assert "--optim muon --batch" in found["muon"]
    assert "--optim 'muon(nesterov=false)' --batch" in found["muon(nesterov=false)"]
    assert "--optim 'adamw(betas=[0.9, 0.95], eps=1e-06)' --batch" in found["adamw"]
    assert not any("--set" in command for command in found.values())


FASTER = AnalysisConfig(resamples=200)
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
    own = analyze(tmp_path, FASTER)
    found = analyze(tmp_path, FASTER, targets=[sign * 3.4], metric="extra")
    assert steps(found) == pytest.approx(steps(own), rel=1e-6)
    assert found.answers[0].interval == pytest.approx(own.answers[0].interval, rel=1e-6)
    assert str(found.answers[0].target) == f"extra {'<' if direction == 'below' else '>'} {sign * 3.4:g}"
    assert found.answers[0].group.metric_unit == ""
    scope = compare(tmp_path, FASTER, targets=[sign * 3.4], metric="extra").comparisons[0]
    assert scope.token_ratios[0].at == pytest.approx(compare(tmp_path, FASTER).comparisons[0].token_ratios[0].at)


def test_a_metric_of_the_batches_trained_on_is_said_to_be_one_and_has_the_unit_of_a_loss(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": INSIDE}, **ASKED)
    found = analyze(tmp_path, FASTER, targets=[2.4], metric="train_loss")
    assert found.answers[0].group.metric_unit == "nats/byte"
    assert any("measured on the training batches" in note for note in found.notes)
    assert not found.answers[0].group.evaluated
    assert load(tmp_path).groups[0].evaluated


def test_where_trials_stopped_before_one_could_win_there_is_no_answer(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": INSIDE}, **ASKED)
    # the best learning rate of the target ends a tenth short of this one, which slower ones pass later than that
    measured(tmp_path, lambda trial, value: value + (0.1 if trial.config.lr == 2e-3 else -0.01))
    found = analyze(tmp_path, FASTER, targets=[2.4], metric="extra").answers[0]
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
        analyze(tmp_path, FASTER, metric="extra")
    with pytest.raises(ResultsError, match=r"has no metric 'f1'; it has validation_loss, train_loss, extra"):
        analyze(tmp_path, FASTER, metric="f1", targets=[1.0])
