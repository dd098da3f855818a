"""Where facts about runs come from: the source, a table of runs, names, constants; and how they may disagree."""

from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers.base import ImportedRun
from analysis.read.importers.facts import facts_of
from cbs.errors import CbsError, ConfigError, DataError
from tests.analysis.read.importers.sources import settings, write_csv

ADAMW = {"batch_size": 8, "optimizer": "adamw", "lr": 1e-3, "seed": 0}


def one(run: ImportedRun, **changes: Any) -> dict[str, Any]:
    _, (facts,) = facts_of([run], settings(**changes), [])
    return facts


def named(name: str, **about: Any) -> ImportedRun:
    return ImportedRun(name=name, place="here", **about)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("adamw-b8-lr1e-3-s0", "{optimizer}-b{batch_size}-lr{lr}-s{seed}"),
        ("sweeps/adamw-b8-lr0.001-s0", "{optimizer}-b{batch_size}-lr{lr}-s{seed}"),
        ("adamw/8/.001/0", "{optimizer}/{batch_size}/{lr}/{seed}"),
        ("a+b_adamw_8_0.001_0_final", "*_{optimizer}_{batch_size}_{lr}_{seed}_*"),
        ("lr=1E-3.b=8.adamw", "lr={lr}.b={batch_size}.{optimizer}"),
    ],
)
def test_names_are_read_by_pattern(name: str, pattern: str) -> None:
    facts = one(named(name), pattern=pattern)
    assert {key: facts[key] for key in ADAMW} == ADAMW


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("{optimiser}", "{optimiser} is unknown"),
        ("{lr}-{lr}", "{lr} twice"),
        ("runs", "names nothing"),
        ("{", "names nothing"),
    ],
)
def test_an_unusable_pattern_is_one_line(pattern: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        one(named("x"), pattern=pattern)
    assert words in str(caught.value)


def test_a_table_of_runs_knows_them_by_name_or_alias(tmp_path: Path) -> None:
    rows = [{"run": "a", "bs": 8, "optimizer": "adamw", "lr": 1e-3, "seed": 0}, {"run": "gone", "bs": 1}]
    table = write_csv(tmp_path / "runs.csv", [{"optimizer": "", "lr": "", "seed": ""} | row for row in rows])
    runs = [named("p/1", aliases=("a",)), named("p/2", facts=ADAMW)]
    notes: list[str] = []
    _, found = facts_of(runs, settings(runs=table, columns={"batch_size": "bs"}), notes)
    assert [{key: facts[key] for key in ADAMW} for facts in found] == [ADAMW, ADAMW]
    assert notes == [f"{table}: 1 rows match no run: gone"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"name": "a"}], "no column 'run'"),
        ([{"run": "a"}, {"run": "a"}], "run 'a' appears twice"),
        ([{"run": "", "lr": 1}], "run '' is empty"),
        ([{"run": "a", "batch_size": "8.5"}], "run a, batch_size in .*runs.csv: '8.5' is not a whole number"),
    ],
)
def test_a_broken_table_of_runs_is_one_line(tmp_path: Path, rows: list[dict[str, Any]], words: str) -> None:
    table = write_csv(tmp_path / "runs.csv", rows)
    with pytest.raises(DataError, match=words):
        one(named("a"), runs=table)


def test_two_places_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(DataError, match="run x: batch_size is 8 in here and 16 by --set; keep one"):
        one(named("x", facts=ADAMW), constants={"batch_size": "16"})
    assert one(named("x", facts=ADAMW), constants={"batch_size": "8.0", "lr": "0.0010"})["lr"] == 1e-3


def test_the_settings_a_run_recorded_are_read_on_request() -> None:
    config = {"global": {"batch": 8}, "opt.name": "adamw", "lr": "1e-3", "betas": [0.9]}
    columns = {"batch_size": "config.global.batch", "optimizer": "config.opt.name", "lr": "config.lr"}
    facts = one(named("x", config=config), columns=columns)
    assert {key: facts[key] for key in ADAMW} == ADAMW
    for key, words in (
        ("global", "not a single value"),
        ("betas", "not a single value"),
        ("bs", "no config.bs; its config has"),
    ):
        with pytest.raises(DataError, match=words):
            one(named("x", config=config), columns=columns | {"batch_size": f"config.{key}"})


@pytest.mark.parametrize(
    ("title", "more", "passes", "size"),
    [
        ("batch_size", {"gradient_accumulation_steps": 40}, "config.gradient_accumulation_steps", 480),
        ("data.batch", {"trainer": {"accumulate_grad_batches": "4"}}, "config.trainer.accumulate_grad_batches", 48),
        ("batch_size", {"accumulation": 2, "num_gpus": 4}, "config.accumulation*config.num_gpus", 96),
        ("batch_size", {"gradient_accumulation_steps": 1}, "", 12),
        ("batch_size", {"accumulate": True}, "", 12),
        ("batch_size", {}, "", 12),
        ("global_batch", {"gradient_accumulation_steps": 40}, "", 12),
    ],
)
def test_a_batch_size_beside_passes_or_devices_is_asked_about(
    title: str, more: dict[str, Any], passes: str, size: int
) -> None:
    config = {"batch_size": 12, "global_batch": 12, "data": {"batch": 12}} | more
    runs = [named(name, config=config, facts={"optimizer": "sgd", "lr": 1e-3}) for name in "xy"]

    def size_of(column: str) -> int:
        return int(facts_of(runs, settings(columns={"batch_size": column}), [])[1][0]["batch_size"])

    asked = f"config.{title}"
    if passes:
        with pytest.raises(DataError) as caught:
            size_of(asked)
        assert f"'batch_size={asked}*{passes}'" in str(caught.value)
        assert size_of(f"{asked}*1") == 12
        asked = f"{asked}*{passes}"
    assert size_of(asked) == size


def test_what_nobody_said_has_a_default_only_where_that_is_harmless() -> None:
    facts = one(named("x", facts={key: ADAMW[key] for key in ("batch_size", "optimizer", "lr")}))
    assert (facts["seed"], facts["workload"], facts["parameters"], facts["status"]) == (0, "imported", None, None)
    for name in ("batch_size", "optimizer", "lr"):
        with pytest.raises(
            ConfigError, match=rf"not known: {name} of 1 of 1 runs \(x\); give .*--column {name}=THEIRS"
        ):
            one(named("x", facts={key: value for key, value in ADAMW.items() if key != name}))
    config = {"model": {"learning_rate": 1e-3}, "batch_size": 8, "seed": 0}
    pass_them = r"say it, pass --column batch_size=config.batch_size --column lr=config.model.learning_rate; or give"
    with pytest.raises(ConfigError, match=pass_them):
        one(named("x", facts={"optimizer": "adamw"}, config=config))
    with pytest.raises(ConfigError, match=r"say it, pass --column lr=config.model.learning_rate; or give"):
        one(named("x", facts={"optimizer": "adamw", "batch_size": "8"}, config=config))
    # two settings may both be meant
    with pytest.raises(ConfigError, match=r"say it, pass --column batch_size=config.batch_size; or give"):
        one(named("x", facts={"optimizer": "adamw"}, config=config | {"lr": 1e-3}))
    # a batch size is that of its name, and only without one the product of its parts
    split = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    with pytest.raises(ConfigError, match=pass_them):
        one(named("x", facts={"optimizer": "adamw"}, config=config | split))
    parts = r"pass --column 'batch_size=config.micro_batch_size\*config.gradient_accumulation_steps'; or give"
    with pytest.raises(ConfigError, match=parts):
        one(named("x", facts={"optimizer": "adamw", "lr": "1"}, config=split))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"direction": "down"}, "'below' or 'above'"),
        ({"target": float("nan")}, "finite"),
        ({"tokens_per_example": 0}, "--tokens-per-example must be at least 1"),
        ({"trials": 0}, "--trials must be at least 1"),
        ({"batch_unit": "bytes"}, "--batch-unit"),
        ({"columns": {"batchsize": "bs"}}, "batchsize"),
        ({"columns": {"step": "a", "tokens": "b"}}, "one axis"),
        ({"columns": {"step": "epoch"}}, "by its name it counts epochs"),
        ({"columns": {"step": "trainer/Epoch"}}, "by its name it counts epochs"),
        ({"columns": {"step": "epoch_id"}}, "by its name it counts epochs"),
        ({"constants": {"batchsize": "8"}}, "batchsize"),
        ({"constants": {"batch_size": "8k"}}, "--set batch_size: '8k' is not a number"),
        ({"constants": {"optimizer": "../up"}}, "folder's name"),
        ({"constants": {"optimizer": ".hidden"}}, "folder's name"),
    ],
)
def test_an_unusable_setting_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CbsError) as caught:
        settings(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
