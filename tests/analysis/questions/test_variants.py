"""Several variants of one optimizer in one sweep: told apart by every question, in every file and figure."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import analyze, present
from analysis.config import AnalysisConfig
from analysis.present.figures import figures_of
from analysis.questions.compare.optimizers import compare
from analysis.read.throughput import StepTimeTable
from cbs.errors import ConfigError
from cbs.trial.step_times import StepTime
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
    [
        (None, "adamw"),
        ("muon", "muon"),
        ("muon(nesterov=False)", "muon(nesterov=false)"),
        ("adamw(eps=1e-6)", "adamw"),
    ],
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
