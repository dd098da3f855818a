"""Tables as other tools export them: their words for how a run ended, and columns that may mean the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from analysis.read.importers.importing import ImportReport
from cbs.errors import ConfigError, DataError
from tests.analysis.read.importers.sources import settings, write_csv

SIZE, RATE, SEED, LENGTH = "params_batch_size", "params_lr", "params_seed", "user_attrs_examples"
COLUMNS = {"batch_size": SIZE, "lr": RATE, "seed": SEED, "examples": LENGTH}


def rows(words: list[str], title: str, **more: Any) -> list[dict[str, Any]]:
    """A row per word, as ``study.trials_dataframe()`` names the columns."""
    return [
        {"number": at, SIZE: 16, RATE: 1e-3 * (at + 1), SEED: 0, LENGTH: 4096, "loss": 2.0 + at, title: word} | more
        for at, word in enumerate(words)
    ]


def imported(top: Path, table: list[dict[str, Any]], **changes: Any) -> ImportReport:
    given = {"columns": COLUMNS, "constants": {"optimizer": "adamw"}} | changes
    return import_runs([write_csv(top / "runs.csv", table)], top / "out", settings(**given))


def ends(report: ImportReport) -> dict[float, str]:
    return {each.evaluations[-1].value: str(each.status) for each in report.trials}


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("status", ["FINISHED", "FAILED", "KILLED", "RUNNING", "FINISHED"]),  # MLflow: search_runs
        ("state", ["COMPLETE", "PRUNED", "FAIL", "RUNNING", "COMPLETE"]),  # Optuna: trials_dataframe
        ("State", ["finished", "crashed", "failed", "running", "finished"]),  # W&B: the table of runs
        ("status", ["COMPLETED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", "ok"]),  # Slurm: sacct
        ("State", ["COMPLETED", "CANCELLED by 1000", "NODE_FAIL", "PREEMPTED", "COMPLETED"]),
        ("Status", ["Completed", "Stopped", "Failed", "InProgress", "Completed"]),  # SageMaker: list-training-jobs
        ("STATUS", ["Succeeded", "Failed", "Pending", "Running", "Succeeded"]),  # Kubernetes: kubectl get pods
        ("trial_status", ["COMPLETED", "EARLY_STOPPED", "ABANDONED", "RUNNING", "COMPLETED"]),  # Ax: trials as a table
        ("sys/state", ["Inactive", "Active", "Active", "Active", "Inactive"]),  # Neptune: fetch_runs_table
        ("Status", ["Completed", "Aborted", "Failed", "Queued", "Published"]),  # ClearML: the table of experiments
    ],
)
def test_runs_that_did_not_finish_are_left_out_and_told(tmp_path: Path, title: str, words: list[str]) -> None:
    report = imported(tmp_path, rows(words, title))
    assert report.format == "final_losses"
    values = ends(report)
    assert (values.pop(2.0), values.pop(6.0)) == ("REACHED", "BUDGET_EXHAUSTED")  # the target is 2.4
    assert set(values.values()) <= {"OUT_OF_MEMORY"}
    (note,) = report.notes
    word = words[1].upper().split()[0]
    told = f"left out {3 - len(values)} runs that did not finish, by the status: {words.count(words[1])} {word}"
    assert note.startswith(told)


def test_what_did_not_finish_needs_no_value_and_no_settings_of_its_own(tmp_path: Path) -> None:
    table = rows(["FINISHED", "FAILED", "KILLED", "RUNNING"], "status")
    table[1] |= {"loss": "", RATE: ""}
    table[2] |= {RATE: table[0][RATE]}  # run again
    assert ends(imported(tmp_path, table)) == {2.0: "REACHED"}
    both = imported(tmp_path / "b", rows(["FINISHED", "KILLED"], "status"), statuses={"KILLED": "BUDGET_EXHAUSTED"})
    assert (ends(both), both.notes) == ({2.0: "REACHED", 3.0: "BUDGET_EXHAUSTED"}, [])


def test_words_of_ones_own_are_asked_for_once(tmp_path: Path) -> None:
    table = rows(["good", "stuck", "good"], "status")
    with pytest.raises(DataError, match=r"'GOOD' is none of REACHED.*; say .*--status GOOD=BUDGET_EXHAUSTED"):
        imported(tmp_path, table)
    meant = {"GOOD": "BUDGET_EXHAUSTED", "STUCK": "DIVERGED"}
    assert ends(imported(tmp_path, table, statuses=meant)) == {2.0: "REACHED", 3.0: "DIVERGED", 4.0: "BUDGET_EXHAUSTED"}
    with pytest.raises(ConfigError, match="--status GOOD=FINE: a run is one of REACHED"):
        settings(statuses={"GOOD": "FINE"})


def test_our_words_and_a_state_that_is_none_stay_as_they_are(tmp_path: Path) -> None:
    own = imported(tmp_path / "own", rows(["FAILED", "REACHED"], "status"))
    assert (ends(own), own.notes) == ({2.0: "FAILED", 3.0: "BUDGET_EXHAUSTED"}, [])
    assert len(imported(tmp_path / "else", rows(["Ohio", "running"], "state")).trials) == 2
    with pytest.raises(DataError, match=r"the status 'STUCK' is none of .*--status STUCK="):
        imported(tmp_path / "asked", rows(["Completed", "Failed", "Stuck"], "Status"))
    with pytest.raises(DataError, match="no run is left: left out 2 runs that did not finish"):
        imported(tmp_path / "none", rows(["running", "KILLED"], "state"))


def test_the_state_in_a_table_of_runs_counts_for_curves(tmp_path: Path) -> None:
    curves = [{"run": run, "step": 8, "loss": 2.0} for run in ("a", "b")]
    about = [{"run": run, "State": word, "batch_size": 8, "lr": 0.1} for run, word in
             (("a", "finished"), ("b", "crashed"))]  # fmt: skip
    runs = write_csv(tmp_path / "about.csv", about)
    report = imported(tmp_path, curves, columns={}, runs=runs)
    assert [each.message for each in report.trials] == ["imported from run a"]


TWICE = {"batch_size": 16, "lr": 1e-4, "examples": 4096, "loss": 2.0}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"learning_rate": 1e-3}, "lr"),  # W&B: the setting, and the last value of a schedule
        ({"params.peak_lr": 1e-3}, "lr"),
        ({"optimizer/learning_rate": 1e-3}, "lr"),  # Hydra's groups in a table of W&B
        ({"lr_muon": 0.02}, "lr"),  # Of two optimizers, each with its own
        ({"adam_lr": 3e-4}, "lr"),
        ({"min_lr": 1e-4}, "lr"),  # nanoGPT: where the schedule ends
        ({"global_batch_size": 64}, "batch_size"),
        ({"train.effective_batch_size": 64}, "batch_size"),
        ({"config/train_batch_size": 64}, "batch_size"),
    ],
)
def test_of_two_columns_that_may_be_meant_one_is_asked_for(tmp_path: Path, more: dict[str, Any], named: str) -> None:
    (title, value), mine = next(iter(more.items())), TWICE[named]
    with pytest.raises(DataError) as caught:
        imported(tmp_path, [TWICE | more], columns={})
    assert f"line 2: '{named}' ({mine}) and '{title}' ({value}) may both be the {named}; say which" in str(caught.value)
    for chosen in (named, title):
        report = imported(tmp_path / chosen.replace("/", "-"), [TWICE | more], columns={named: chosen})
        assert getattr(report.trials[0].config, named) == (TWICE | more)[chosen]


@pytest.mark.parametrize(
    ("more", "passes", "size"),
    [
        ({"gradient_accumulation_steps": 40}, "gradient_accumulation_steps", 640),  # nanoGPT: that of one pass
        ({"world_size": 8}, "world_size", 128),  # Lightning, torchrun: that of one device
        ({"trainer/n_gpus": 8}, "trainer/n_gpus", 128),
        ({"grad_accum": 2, "gpus": 4}, "grad_accum*gpus", 128),
        ({"nodes": 2, "dp_size": 3}, "nodes*dp_size", 96),
        ({"per_device_batch_size": 4, "devices": 4}, "devices", 64),
    ],
)
def test_a_batch_size_of_one_pass_or_device_is_asked_about(
    tmp_path: Path, more: dict[str, Any], passes: str, size: int
) -> None:
    more = more | {"examples": 3840}
    with pytest.raises(DataError) as caught:
        imported(tmp_path, [TWICE | more], columns={})
    assert f"give --column 'batch_size=batch_size*{passes}', or '...=batch_size*1'" in str(caught.value)
    for chosen, read in ((f"batch_size*{passes}", size), ("batch_size*1", 16), ("batch_size", 16)):
        report = imported(
            tmp_path / str(read) / chosen.replace("/", "-"), [TWICE | more], columns={"batch_size": chosen}
        )
        assert report.trials[0].config.batch_size == read


def test_the_product_of_a_batch_size_in_parts_is_offered(tmp_path: Path) -> None:
    row = {name: value for name, value in TWICE.items() if name != "batch_size"}
    parts = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_gpus": 8}
    curves = [row | parts | {"run": "a", "step": step, "loss": 3 - step} for step in (1, 2)]
    product = "*".join(parts)
    with pytest.raises(ConfigError, match=re.escape(f"pass --column 'batch_size={product}'; or")):
        imported(tmp_path / "none", curves, columns={"step": "step"})
    for columns in ({"batch_size": "per_device_train_batch_size"}, {"batch_size": "per_device_train_batch_size*8"}):
        if "*" not in columns["batch_size"]:
            with pytest.raises(DataError, match=re.escape(f"'batch_size={product}'")):
                imported(tmp_path / "one", curves, columns=columns)
        else:
            assert imported(tmp_path / "two", curves, columns=columns).trials[0].config.batch_size == 32
    assert imported(tmp_path / "all", curves, columns={"batch_size": product}).trials[0].config.batch_size == 64


def test_columns_that_agree_or_mean_something_else_are_no_question(tmp_path: Path) -> None:
    alike = {"learning_rate": 1e-4, "min_lr": 1e-5, "lr_decay_iters": 600, "gradient_accumulation_steps": 1,
             "global_batch_size": 16, "eval_batch_size": 512, "lr_scheduler": "cosine"}  # fmt: skip
    assert imported(tmp_path, [TWICE | alike], columns={}).trials[0].config.lr == 1e-4
