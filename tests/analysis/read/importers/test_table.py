"""Tables in long form: what is read from them, and every way they can be wrong."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.read.importers import import_runs
from analysis.read.results import load
from cbs.errors import ConfigError, DataError
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from tests.analysis.read.importers.sources import CURVES, curves_of, long_rows, settings, write_csv
from tests.factories import LRS, Truth, sweep

HAS_CONFIG = False

EXACT = 1e-9  # Numbers go through text with all digits; what is left is the rounding of the fit


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    return write_csv(top / "a.csv", [{"run": "a"} | row for row in rows])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_every_kind_of_table_gives_the_curves_that_were_written(tmp_path: Path, suffix: str) -> None:
    rows, path = long_rows(), tmp_path / f"runs{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_csv(path, rows, "\t" if suffix == ".tsv" else ",")
    imported = import_runs([path], tmp_path / "out", settings())
    assert imported.format == "table"
    assert curves_of(tmp_path / "out") == {curve.name: curve.rows for curve in CURVES}


def test_a_sweep_of_our_own_comes_back_the_same(tmp_path: Path) -> None:
    truths = {"adamw": Truth(noise=0.05), "muon": Truth(noise=0.05, min_examples=3000)}
    store = sweep(tmp_path / "ours", truths, batch_sizes=(4, 16, 64, 256), lrs=LRS[1:6], seeds=2, growth=1.1)
    rows: list[dict[str, Any]] = []
    for result in store.results():
        config = result.config
        about = {"run": result.trial_id, "optimizer": config.optimizer.name, "batch_size": config.batch_size,
                 "lr": config.lr, "seed": config.seed, "status": str(result.status)}  # fmt: skip
        rows += [about | {"step": row.step, "validation_loss": row.value} for row in result.evaluations]
    written = write_csv(tmp_path / "ours.csv", rows)
    import_runs([written], tmp_path / "out", settings(metric="validation_loss"))
    ours, theirs = (answers(load(tmp_path / name), AnalysisConfig(resamples=200)) for name in ("ours", "out"))
    assert [answer.group.optimizer for answer in theirs] == ["adamw", "muon"]
    for one, other in zip(ours, theirs, strict=True):
        # a log says where a trial was stopped, not after which multiple of the best
        assert other.critical_batch_size == pytest.approx(one.critical_batch_size, rel=0.03)
        assert other.interval == pytest.approx(one.interval, rel=0.15)
        assert [point.steps_per_seed for point in other.points] == [point.steps_per_seed for point in one.points]


def test_rows_may_come_in_any_order_and_say_a_thing_twice(tmp_path: Path) -> None:
    rows = long_rows(CURVES[:2])
    shuffled = [rows[index] for index in np.random.default_rng(0).permutation(len(rows))]
    imported = import_runs(
        [write_csv(tmp_path / "runs.csv", [*shuffled, rows[3], rows[3]])], tmp_path / "out", settings()
    )
    assert curves_of(tmp_path / "out") == {curve.name: curve.rows for curve in CURVES[:2]}
    assert imported.notes == ["dropped 2 rows that repeat a step with the same value"]


@pytest.mark.parametrize(
    ("unit", "per_step", "more"), [("examples", 1, {}), ("tokens", 32, {"tokens_per_example": 32})]
)
def test_examples_and_tokens_become_steps(tmp_path: Path, unit: str, per_step: int, more: dict[str, Any]) -> None:
    rows = [
        {unit if key == "step" else key: value * row["batch_size"] * per_step if key == "step" else value
         for key, value in row.items()}
        for row in long_rows()
    ]  # fmt: skip
    import_runs([write_csv(tmp_path / "runs.csv", rows)], tmp_path / "out", settings(**more))
    assert curves_of(tmp_path / "out") == {curve.name: curve.rows for curve in CURVES}


def test_examples_that_are_almost_whole_steps_are_rounded_and_counted(tmp_path: Path) -> None:
    rows = [{"run": "a", "examples": examples, "loss": 3.0} for examples in (0, 6400, 12805)]
    constants = {"optimizer": "sgd", "lr": "1", "batch_size": "64"}
    source = write_csv(tmp_path / "runs.csv", rows)
    imported = import_runs([source], tmp_path / "out", settings(constants=constants))
    assert [step for step, _ in curves_of(tmp_path / "out")["a"]] == [0, 100, 200]
    assert imported.notes == ["1 points moved to the nearest whole step, by 1 % at most"]
    with pytest.raises(
        DataError, match=r"run a .*6400 examples at 4500 per step is not a whole number of steps \(1\.42"
    ):
        import_runs([source], tmp_path / "more", settings(constants=constants | {"batch_size": "4500"}))


def test_batch_sizes_in_tokens_become_examples(tmp_path: Path) -> None:
    rows = [row | {"batch_size": row["batch_size"] * 1024} for row in long_rows(CURVES[:3])]
    source = write_csv(tmp_path / "runs.csv", rows)
    import_runs([source], tmp_path / "out", settings(batch_unit="tokens", tokens_per_example=1024))
    assert {result.config.batch_size for result in Store(tmp_path / "out").results()} == {2}
    with pytest.raises(DataError, match="2048 tokens is not a whole number of examples of 1000 tokens"):
        import_runs([source], tmp_path / "more", settings(batch_unit="tokens", tokens_per_example=1000))


def test_columns_are_renamed_and_constants_fill_in(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "iter": row["step"], "val": row["loss"], "bs": row["batch_size"]} for row in long_rows(CURVES[:1])
    ]
    names = {"run": "id", "step": "iter", "batch_size": "bs", "loss": "val"}
    constants = {"optimizer": "adamw", "lr": "3e-4", "seed": "5", "workload": "gpt", "parameters": "124000000"}
    import_runs([write_csv(tmp_path / "x.csv", rows)], tmp_path / "out", settings(columns=names, constants=constants))
    (result,) = Store(tmp_path / "out").results()
    config = result.config
    assert (config.workload.name, config.optimizer.name, config.lr, config.batch_size, config.seed) == (
        "gpt", "adamw", 3e-4, 2, 5,
    )  # fmt: skip
    assert result.workload.parameters == 124_000_000
    assert load(tmp_path / "out").groups[0].parameters == 124_000_000


@pytest.mark.parametrize(
    ("values", "status", "steps"),
    [
        ([5.0, 3.0, 2.0], TrialStatus.REACHED, 2 * math.exp(math.log(2) * 0.6)),
        ([5.0, 3.0, 2.5], TrialStatus.BUDGET_EXHAUSTED, None),
        ([5.0, 3.0, math.nan], TrialStatus.DIVERGED, None),
        ([5.0, 2.0, math.inf], TrialStatus.DIVERGED, None),
        ([5.0, math.nan, 2.0], TrialStatus.REACHED, 4.0),
        ([5.0, 3.0, 2.4], TrialStatus.BUDGET_EXHAUSTED, None),
    ],
)
def test_status_is_read_from_the_curve(
    tmp_path: Path, values: list[float], status: TrialStatus, steps: float | None
) -> None:
    rows = [{"run": "a", "step": step, "loss": value} for step, value in zip((0, 2, 4), values, strict=True)]
    constants = {"optimizer": "sgd", "lr": "1", "batch_size": "4"}
    import_runs([write_csv(tmp_path / "x.csv", rows)], tmp_path / "out", settings(constants=constants))
    (result,) = Store(tmp_path / "out").results()
    assert result.status is status
    assert result.steps_to_target == (None if steps is None else pytest.approx(steps, rel=EXACT))
    assert np.array_equal([row.value for row in result.evaluations], values, equal_nan=True)


def test_a_stated_status_is_kept_for_runs_that_ended_early(tmp_path: Path) -> None:
    rows = [row | {"status": "failed" if row["lr"] == 1e-3 else "reached"} for row in long_rows(CURVES[:2])]
    import_runs([write_csv(tmp_path / "x.csv", rows)], tmp_path / "out", settings())
    assert {result.config.lr: str(result.status) for result in Store(tmp_path / "out").results()} == {
        1e-3: "FAILED", 2e-3: "REACHED",
    }  # fmt: skip


def edited(row: int, **cells: Any) -> list[dict[str, Any]]:
    rows = long_rows(CURVES[:2])
    rows[row] |= cells
    return rows


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (edited(3, step=-5), ["line 5", "'step'", "-5"]),
        (edited(3, step="nan"), ["line 5", "'step'", "nan"]),
        (edited(3, step=2.5), ["run adamw-b2-lr0.001-s0", "2.5", "whole number of steps"]),
        (edited(3, step="many"), ["line 5", "'many' is not a number"]),
        (edited(3, step="1_0"), ["line 5", "'1_0' is not a number"]),
        (edited(3, step=""), ["line 5", "'step': it is empty"]),
        (edited(3, step=2), ["run adamw-b2-lr0.001-s0", "two values at step 2"]),
        (edited(3, step=1e30), ["1e+30", "correct or remove"]),
        (edited(3, loss=""), ["line 5", "'loss': it is empty", "write nan"]),
        (edited(3, loss="2.4 nats"), ["line 5", "'2.4 nats' is not a number"]),
        (edited(3, batch_size="2k"), ["line 5", "'batch_size'", "'2k' is not a number"]),
        (edited(3, batch_size=64), ["line 5", "run adamw-b2-lr0.001-s0", "batch_size 2 and 64"]),
        (edited(3, batch_size="nan"), ["line 5", "whole number of at least 1"]),
        (edited(3, lr=0), ["line 5", "learning rate above 0"]),
        (edited(3, seed=-1), ["line 5", "seed", "whole number"]),
        (edited(3, optimizer="a/b"), ["line 5", "'a/b'", "folder's name"]),
        (edited(3, run=""), ["line 5", "'run': it is empty"]),
        ([row | {"status": "fine"} for row in long_rows()], ["'FINE' is none of REACHED", "--status FINE=BUDGET_EX"]),
        ([row | {"lr": 1e-3} for row in long_rows()], ["run adamw-b2-lr0.002-s0", "of run adamw-b2-lr0.001-s0"]),
        ([row for row in long_rows() if row["step"] == 0], ["run adamw-b2-lr0.001-s0", "after step 0"]),
        ([{"step": 1, "loss": 2}], ["no column 'run'", "--set run=NAME"]),
        ([{"run": "a", "step": 1}], ["no column 'loss'", "--metric"]),
        ([{"run": "a", "loss": 1}], ["no column 'step'", "--column step=THEIRS"]),
    ],
)  # fmt: skip
def test_a_broken_table_is_one_line_and_leaves_nothing(
    tmp_path: Path, rows: list[dict[str, Any]], words: list[str]
) -> None:
    source = write_csv(tmp_path / "in" / "runs.csv", rows)
    with pytest.raises(DataError) as caught:
        import_runs([source], tmp_path / "out" / "x", settings())
    assert "\n" not in str(caught.value)
    assert "runs.csv" in str(caught.value) or "run adamw" in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def truncated_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(long_rows()), path)
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"", "is empty"),
        ("x.csv", b"run,step,loss\n", "no rows"),
        ("x.csv", b"run,step,loss\na,1,2\na,2", "2 cells where the header has 3"),
        ("x.csv", b"run,step,loss,loss\na,1,2,3\n", "two columns are called 'loss'"),
        ("x.csv", b"run|step|loss\na|1|2\n", "separated by bars"),
        ("x.csv", b"run;step;loss\na;1;2,123\na;2;1.5\n", "'2,123' is not a number"),  # a decimal or a thousand
        ("x.csv", b"run,step,loss\na,1,diverged\n", "or nan where the run diverged"),
        ("x.csv", b"run,step,loss\n\xff\xfe,1,2\n", "UTF-8"),
        ("x.csv", b'run,step,loss\n"a,1,2\n', "quote is not closed"),
        ("x.parquet", b"", "cannot read"),
        ("x.parquet", truncated_parquet, "cannot read"),
        ("x.parquet", b"PAR1 and nothing else PAR1", "cannot read"),
        ("x.csv", Path.mkdir, "no runs as table at .*: expected a file that ends in"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, name: str, content: Any, words: str) -> None:
    path = tmp_path / name
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        import_runs([path], tmp_path / "out", settings(), format="table")
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_named_for_all_runs_at_once(tmp_path: Path) -> None:
    rows = [{key: row[key] for key in ("run", "step", "loss", "seed")} for row in long_rows()]
    source = write_csv(tmp_path / "runs.csv", rows)
    with pytest.raises(ConfigError) as caught:
        import_runs([source], tmp_path / "out", settings())
    for word in ("batch_size, optimizer, lr of 15 of 15 runs", "--runs FILE", "--pattern", "--set"):
        assert word in str(caught.value)


@pytest.mark.parametrize(("percent", "target", "told"), [(100, 0.5, True), (1, 50.0, True), (1, 0.5, False)])
def test_a_target_in_another_unit_than_the_metric_is_asked_about(
    tmp_path: Path, percent: int, target: float, told: bool
) -> None:
    rows = [{"run": "a", "step": step, "loss": percent * (0.01 + step / 100)} for step in (10, 40, 70)]
    constants = {"optimizer": "sgd", "lr": "1", "batch_size": "64"}
    asked = settings(constants=constants, direction="above", target=target)
    notes = import_runs([write_csv(tmp_path / "runs.csv", rows)], tmp_path / "out", asked).notes
    assert ["is it in the unit of the target?" in note for note in notes] == [True] * told


@pytest.mark.parametrize(
    ("cells", "values"),
    [(["2,25", "1,125"], [2.25, 1.125]), (["0,125", "-,5e1"], [0.125, -5.0]), (["2.25", "1.125"], [2.25, 1.125])],
)
@pytest.mark.parametrize("mark", [";", "\t"])
def test_spreadsheets_with_semicolons_and_decimal_commas_are_read(
    tmp_path: Path, cells: list[str], values: list[float], mark: str
) -> None:
    source = tmp_path / "runs.csv"
    source.write_text("\n".join(mark.join(row) for row in [("step", "loss"), ("1", cells[0]), ("2", cells[1])]))
    constants = {"optimizer": "sgd", "lr": "1", "batch_size": "64", "run": "a"}
    (trial,) = import_runs([source], tmp_path / "out", settings(constants=constants)).trials
    assert [row.value for row in trial.evaluations] == values
