"""``--column OURS=THEIRS`` is honoured or refused by name, whatever the format: every format against every column.

A format is in here by what its own test file has: ``write_run(top, rows, config)`` writes one run whose every row of
``rows`` was logged in one call, and returns the source; ``BASE`` is an axis that has to be named, ``STATES`` are facts
that a source states itself, and ``HAS_CONFIG = False`` says that ``config`` has no place in the format. Where every row
is a run of its own (``ROWS_ARE_RUNS = True``) that file tests its columns itself; so do the tests of what programs
print.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from analysis.read.importers import IMPORTERS, import_runs
from analysis.read.importers.printed import Printed
from analysis.read.importers.settings import AXES, CONFIG
from cbs.errors import DataError
from tests.analysis.read.importers.sources import settings, write_csv


def home_of(format: str) -> ModuleType:
    """The test file of a format: here, or in the folder of the extension that has it."""
    package = IMPORTERS[format].__module__.rpartition(".importers")[0]
    home = "tests.analysis.read.importers" if package == "analysis.read" else f"{package}.tests"
    return importlib.import_module(f"{home}.test_{format}")


FORMATS = [
    name
    for name in IMPORTERS
    if not issubclass(IMPORTERS[name], Printed) and not getattr(home_of(name), "ROWS_ARE_RUNS", False)
]
TOLD = {"batch_size": 16, "lr": 0.25, "seed": 3, "parameters": 7}
KNOWN = {"batch_size": "4", "optimizer": "adamw", "lr": "1e-3"}
ROWS = [{"step": step, "loss": 5.0 - step, "other_loss": 3.0 - step, "other_axis": 64 * step} for step in (1, 2)]


def imported(format: str, top: Path, rows: list[dict[str, Any]], config: dict[str, Any], **changes: Any) -> Any:
    module = home_of(format)
    columns = changes.pop("columns", {})
    columns = columns if set(AXES) & set(columns) else getattr(module, "BASE", {}) | columns
    source = module.write_run(top / "in", rows, config)
    wanted = settings(columns=columns, **{"constants": KNOWN} | changes)
    (trial,) = import_runs([source], top / "out", wanted, format=format).trials
    return trial


@pytest.mark.parametrize("format", FORMATS)
def test_the_metric_is_read_under_its_name_there(tmp_path: Path, format: str) -> None:
    trial = imported(format, tmp_path, ROWS, {}, columns={"loss": "other_loss"})
    assert [row.value for row in trial.evaluations] == [2.0, 1.0]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("format", FORMATS)
def test_the_axis_is_read_under_its_name_there(tmp_path: Path, format: str, axis: str) -> None:
    per_step = {"step": 1, "examples": 4, "tokens": 8}[axis]
    trial = imported(format, tmp_path, ROWS, {}, columns={axis: "other_axis"}, tokens_per_example=2)
    assert [row.step for row in trial.evaluations] == [64 / per_step, 128 / per_step]


@pytest.mark.parametrize("fact", TOLD)
@pytest.mark.parametrize("format", FORMATS)
def test_a_fact_is_read_from_a_column(tmp_path: Path, format: str, fact: str) -> None:
    constants = {name: value for name, value in KNOWN.items() if name != fact}
    rows = [row | {"theirs": TOLD[fact]} for row in ROWS]
    if fact in getattr(home_of(format), "STATES", ()):
        constants = {}  # the source states them; a column that is asked for goes first
    trial = imported(format, tmp_path, rows, {}, columns={fact: "theirs"}, constants=constants)
    told = {name: getattr(trial.config, name) for name in ("batch_size", "lr", "seed")}
    assert (told | {"parameters": trial.workload.parameters})[fact] == TOLD[fact]


@pytest.mark.parametrize("format", FORMATS)
def test_a_fact_is_read_from_the_config(tmp_path: Path, format: str) -> None:
    constants = {"optimizer": "adamw", "batch_size": "4"}
    wanted: dict[str, Any] = {"columns": {"lr": CONFIG + "peak"}, "constants": constants}
    module = home_of(format)
    if not getattr(module, "HAS_CONFIG", True):
        with pytest.raises(DataError, match=r"has no config\.peak; its config has nothing"):
            imported(format, tmp_path, ROWS, {"peak": 0.25}, **wanted)
    else:
        assert imported(format, tmp_path, ROWS, {"peak": 0.25}, **wanted).config.lr == 0.25


@pytest.mark.parametrize("name", ["loss", "step", "tokens", "run", "batch_size", "optimizer", "workload", "status"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_column_that_is_not_there_is_refused_by_name(tmp_path: Path, format: str, name: str) -> None:
    changes = {"tokens_per_example": 2} if name == "tokens" else {}
    with pytest.raises(DataError, match="gone") as caught:
        imported(format, tmp_path, ROWS, {}, columns={name: "gone"}, **changes)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_source_lacks_may_be_in_the_table_of_runs(tmp_path: Path, format: str) -> None:
    listed = write_csv(tmp_path / "about.csv", [{"run": "someone else", "peak": 0.5}])
    trial = imported(format, tmp_path, ROWS, {}, columns={"lr": "peak"}, runs=listed, constants=KNOWN)
    assert trial.config.optimizer.name


def test_a_run_has_one_of_everything(tmp_path: Path) -> None:
    rows = [row | {"theirs": index} for index, row in enumerate(ROWS)]
    with pytest.raises(DataError, match=r"run .* has the seed 0 and 1; a run has one"):
        imported("jsonl", tmp_path, rows, {}, columns={"seed": "theirs"})
