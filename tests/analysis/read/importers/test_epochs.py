"""Axes that count epochs: found where something else counts updates, converted where one says how long an epoch is."""

from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from analysis.read.importers.importing import ImportReport
from cbs.errors import ConfigError, DataError
from tests.analysis.read.importers.sources import settings, write_csv

EXAMPLES, SIZES = 1000, (30, 100, 500)
UPDATES = {30: 34, 100: 10, 500: 2}  # Of an epoch: 1000/30 is 33.3

PATTERN = "b{batch_size}"
KNOWN = {"optimizer": "sgd", "lr": "0.1"}


def imported(top: Path, source: Path, **changes: Any) -> ImportReport:
    given = {"metric": "accuracy", "direction": "above", "target": 0.45, "pattern": PATTERN, "constants": KNOWN}
    return import_runs([source], top / "out", settings(**given | changes))


def steps_of(report: ImportReport) -> dict[int, list[int]]:
    return {each.config.batch_size: [row.step for row in each.evaluations] for each in report.trials}


def table(path: Path, **more: Any) -> Path:
    each = [(size, epoch) for size in SIZES for epoch in range(1, 6)]
    return write_csv(path, [{"run": f"b{size}", "step": at, "accuracy": 0.1 * at} | more for size, at in each])


def test_a_table_is_noted_without_and_refused_with_a_counter_beside(tmp_path: Path) -> None:
    alone = imported(tmp_path / "alone", table(tmp_path / "a.csv"))
    assert alone.notes[0].startswith("every run was measured at step 1, 2, 3 to 5, whatever its batch size")
    with pytest.raises(DataError, match="counts to 5,000 beside it"):
        imported(tmp_path / "beside", table(tmp_path / "b.csv", **{"train/global_step": 5000}))
    near = imported(tmp_path / "near", table(tmp_path / "c.csv", global_step=40))
    assert steps_of(near)[30] == [1, 2, 3, 4, 5]


def test_a_column_of_epochs_is_one_if_their_length_is_known(tmp_path: Path) -> None:
    rows = [{"run": "b30", "epoch": epoch, "accuracy": 0.1 * epoch} for epoch in (0, 2, 4)]
    source, columns = write_csv(tmp_path / "a.csv", rows), {"step": "epoch"}
    with pytest.raises(ConfigError, match=r"by its name it counts epochs.*--examples-per-epoch N"):
        imported(tmp_path, source, columns=columns)
    report = imported(tmp_path, source, columns=columns, examples_per_epoch=EXAMPLES)
    assert steps_of(report) == {30: [34, 102, 170]}
    assert "counted from 0, and 1 was added to each" in report.notes[1]
    half = write_csv(tmp_path / "b.csv", [{"run": "b30", "epoch": 0.5, "accuracy": 0.1}])
    with pytest.raises(DataError, match=r"0\.5 is not a whole number of epochs"):
        imported(tmp_path / "half", half, columns=columns, examples_per_epoch=EXAMPLES)
    with pytest.raises(ConfigError, match="--column gives one of tokens"):
        imported(tmp_path, source, columns={"tokens": "epoch"}, examples_per_epoch=EXAMPLES)


def lines(*rows: str) -> str:
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("name", "format", "columns", "text"),
    [
        ("results.csv", "csv", {"step": "epoch"},  # Ultralytics: titles are padded
         lines("    epoch,   train/box_loss,   accuracy", "        1,   2.0,   0.3", "        2,   1.5,   0.4",
               "        3,   1.2,   0.6")),
        ("summary.csv", "csv", {"step": "epoch"},  # timm: from 0, after the first epoch; lr is that of the epoch
         lines("epoch,train_loss,eval_loss,accuracy,lr", "0,3.1,2.9,0.3,0.4", "1,2.5,2.4,0.4,0.3",
               "2,2.2,2.1,0.6,0.2")),
        ("history.csv", "csv", {"step": "epoch"},  # fastai
         lines("epoch,train_loss,valid_loss,accuracy,time", "0,3.1,2.9,0.3,00:12",
               "1,2.5,2.4,0.4,00:11", "2,2.2,2.1,0.6,00:11")),
        ("scalars.json", "jsonl", {},  # MMEngine: step counts updates in training, epochs in validation
         lines('{"lr": 0.1, "loss": 3.1, "epoch": 1, "iter": 10, "step": 10}', '{"accuracy": 0.3, "step": 1}',
               '{"accuracy": 0.4, "step": 2}', '{"accuracy": 0.6, "step": 3}',
               '{"lr": 0.1, "loss": 2.2, "epoch": 3, "iter": 30, "step": 30}')),
    ],
)  # fmt: skip
def test_logs_of_training_toolkits_that_count_epochs(
    tmp_path: Path, name: str, format: str, columns: dict[str, str], text: str
) -> None:
    (tmp_path / "b100").mkdir()
    (tmp_path / "b100" / name).write_text(text)
    given = {"metric": "accuracy", "direction": "above", "target": 0.45, "columns": columns,
             "constants": KNOWN | {"batch_size": "100"}}  # fmt: skip
    with pytest.raises(ConfigError if columns else DataError, match=r"epochs.*--examples-per-epoch N"):
        import_runs([tmp_path / "b100" / name], tmp_path / "out", settings(**given), format=format)
    known = settings(**given, examples_per_epoch=EXAMPLES)
    (trial,) = import_runs([tmp_path / "b100" / name], tmp_path / "out", known, format=format).trials
    assert [(row.step, row.value) for row in trial.evaluations] == [(10, 0.3), (20, 0.4), (30, 0.6)]
    assert trial.config.lr == 0.1


def test_two_validations_are_of_epochs_where_updates_are_counted_beside_them(tmp_path: Path) -> None:
    source = tmp_path / "scalars.jsonl"
    source.write_text(
        lines('{"loss": 3.1, "iter": 200, "step": 200}', *(f'{{"accuracy": 0.{n}, "step": {n}}}' for n in (1, 2)))
    )
    given = {"metric": "accuracy", "direction": "above", "target": 0.15, "constants": KNOWN | {"batch_size": "100"}}
    with pytest.raises(DataError, match=r"at step 2, and run .* counts to 200 beside it: these are epochs"):
        import_runs([source], tmp_path / "out", settings(**given))
