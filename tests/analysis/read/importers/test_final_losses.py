"""Tables of final losses: every row is a run of one evaluation."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.read.importers import Settings, import_runs
from analysis.read.results import load
from cbs.errors import DataError
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from tests.analysis.read.importers.sources import settings, write_csv

ROWS_ARE_RUNS = True

ASKED = {
    "metric": "loss", "direction": "below", "target": 1.0, "example_unit": "sequence", "metric_unit": "nats/token",
    "tokens_per_example": 32, "constants": {"optimizer": "adamw"},
}  # fmt: skip


def table(path: Path, *, length: str = "tokens", header: str = "batch_size,lr,{length},seed,loss") -> Path:
    rows = [header.format(length=length)]
    amount = {"tokens": 32 * 8192, "examples": 8192}
    for size in (8, 16, 32, 64):
        for rate in (0.25, 0.5, 1.0, 2.0, 4.0):
            for seed in (0, 1, 2):
                loss = 2.4 + 0.0005 * size + 0.1 * math.log(rate) ** 2 + 0.001 * ((7 * seed + size + 3 * rate) % 3 - 1)
                lr = 1e-3 * math.sqrt(size) * rate
                rows.append(f"{size},{lr:.6g},{amount.get(length, 8192 // size)},{seed},{loss:.6f}")
    path.write_text("\n".join(rows))
    return path


def test_budgets_need_an_import_each(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", length="examples")
    longer = path.read_text().replace(",8192,", ",16384,").split("\n", 1)[1]
    path.write_text(f"{path.read_text()}\n{longer}")
    with pytest.raises(DataError, match=r"seed .0. of run t.csv, line 2; .*runs of other budgets into a folder of"):
        import_runs([path], tmp_path / "out", Settings(**ASKED))


@pytest.mark.parametrize("length", ["tokens", "examples", "step"])
def test_a_row_is_a_run(length: str, tmp_path: Path) -> None:
    report = import_runs([table(tmp_path / "t.csv", length=length)], tmp_path / "out", Settings(**ASKED))
    assert report.format == "final_losses"
    assert "1 table with batch_size, lr" in report.detected[0]
    results = list(Store(tmp_path / "out").results())
    assert len(results) == 60
    assert {result.final_examples for result in results} == {8192}
    assert {len(result.evaluations) for result in results} == {1}
    assert {result.status for result in results} == {TrialStatus.BUDGET_EXHAUSTED}


def test_runs_that_diverged_and_another_optimizer(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", header="batch_size,lr,tokens,seed,loss")
    path.write_text(path.read_text() + "\n8,0.1,262144,0,nan\n")
    report = import_runs([path], tmp_path / "out", Settings(**ASKED))
    assert [result.status for result in report.trials].count(TrialStatus.DIVERGED) == 1
    renamed = table(tmp_path / "u.csv", header="batch_size,lr,{length},seed,final")
    settings = Settings(**ASKED | {"columns": {"loss": "final"}, "constants": {"optimizer": "merit"}})
    assert len(import_runs([renamed], tmp_path / "out", settings, add=True).trials) == 60
    results = list(Store(tmp_path / "out").results())
    assert sorted({result.config.optimizer.name for result in results}) == ["adamw", "merit"]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("batch_size,lr,steps,seed,loss", "tokens=THEIRS.* if a run has several rows, .*--column run=THEIRS"),
        ("batch_size,lr,tokens,seed,perplexity", "perplexity"),
    ],
)
def test_what_is_missing_is_named(header: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        import_runs([table(tmp_path / "t.csv", header=header)], tmp_path / "out", Settings(**ASKED))


def test_columns_are_read_under_their_names_there_or_refused_by_name(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", header="bs,peak_lr,{length},s,final")
    columns = {"batch_size": "bs", "lr": "peak_lr", "seed": "s", "loss": "final"}
    plain = import_runs([table(tmp_path / "u.csv")], tmp_path / "plain", Settings(**ASKED))
    named = import_runs([source], tmp_path / "named", Settings(**ASKED | {"columns": columns}), format="final_losses")
    ends = [
        sorted((one.config.batch_size, one.config.lr, one.config.seed, one.evaluations[-1].value) for one in every)
        for every in (plain.trials, named.trials)
    ]
    assert ends[0] == ends[1]
    with pytest.raises(DataError, match="nowhere"):
        import_runs([source], tmp_path / "x", Settings(**ASKED | {"columns": columns | {"loss": "nowhere"}}),
                    format="final_losses")  # fmt: skip


def test_questions_about_steps_refuse_them(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    out = tmp_path / "out"
    import_runs([table(tmp_path / "t.csv")], out, Settings(**ASKED))
    code, _, err = run("analyze", out)
    assert (code, err.count("\n")) == (2, 1)
    assert f"one evaluation per run, so no steps to a target are known: cbs budget {out} compares" in err


@pytest.mark.parametrize(("steps", "alone"), [((8,), True), ((0, 8), True), ((4, 8), False), ((0, 4, 8), False)])
def test_imported_runs_of_one_evaluation_after_their_start_have_no_steps(
    tmp_path: Path, steps: tuple[int, ...], alone: bool
) -> None:
    rows = [{"run": f"r{size}", "batch_size": size, "lr": 0.1, "step": at, "loss": 3.0 - at} for size in (8, 16)
            for at in steps]  # fmt: skip
    given = settings(constants={"optimizer": "adamw"})
    import_runs([write_csv(tmp_path / "a.csv", rows)], tmp_path / "out", given, format="table")
    results = load(tmp_path / "out")
    assert results.ends_alone(0) is alone
    results.groups[0].manifest.pop("imported")
    assert not results.ends_alone(0)
