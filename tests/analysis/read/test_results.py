"""Reading results: groups that are never pooled, duplicates, and every way a folder can be wrong."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import parse_choice
from cbs.trial.config import Choice, Schedule, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from tests.factories import TARGET, trial


def config(**changes: Any) -> TrialConfig:
    base: dict[str, Any] = {
        "workload": Choice(name="synthetic"),
        "optimizer": Choice(name="adamw"),
        "lr": 1e-3,
        "batch_size": 8,
        "seed": 0,
        "target": TARGET,
        "max_steps": 100,
    }
    return TrialConfig(**base | changes)


ROWS = [(0, 5.6), (1, 4.0), (10, 3.0), (40, 2.3)]


def written(root: Path, *configs: TrialConfig, **options: Any) -> Path:
    store = Store(root)
    store.prepare()
    store.write_manifest({"name": root.name, "protocol": {"prune_factor": None}})
    for entry in configs:
        store.save(trial(entry, ROWS, TrialStatus.REACHED, **options))
    return root


def test_tables_are_tidy(tmp_path: Path) -> None:
    results = load(written(tmp_path, config(), config(lr=2e-3)))
    assert results.trials[["lr", "batch_size", "seed", "status"]].values.tolist() == [
        [1e-3, 8, 0, "REACHED"],
        [2e-3, 8, 0, "REACHED"],
    ]
    assert results.evaluations["step"].tolist() == [0, 1, 10, 40] * 2
    assert results.evaluations["trial"].tolist() == [0] * 4 + [1] * 4
    (group,) = results.groups
    assert (group.optimizer, group.workload, group.example_unit, group.tokens_per_example) == (
        "adamw",
        "synthetic",
        "sequence",
        32,
    )
    assert group.target == TARGET


def test_trials_that_differ_in_lr_batch_size_seed_or_execution_are_one_group(tmp_path: Path) -> None:
    base = config()
    same = [
        config(lr=2e-3),
        config(batch_size=16),
        config(seed=1),
        config(seed=2, micro_batch_size=2, max_steps=200, device="cpu"),
    ]
    assert len(load(written(tmp_path, base, *same)).groups) == 1


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"optimizer": Choice(name="adamw", options={"weight_decay": 0.1})}, "adamw(weight_decay=0.1)"),
        ({"schedule": Schedule(name="cosine", decay_examples=1000)}, "cosine"),
        ({"schedule": Schedule(options={"power": 2})}, "schedule.options.power=2"),
        ({"clip_norm": 1.0}, "clip_norm=1.0"),
        ({"averaging": Choice(name="ema", options={"decay": 0.9})}, "averaging.name=ema, averaging.options.decay=0.9"),
        ({"precision": "bfloat16"}, "precision=bfloat16"),
        ({"divergence_factor": 3.0}, "divergence_factor=3.0"),
    ],
)
def test_unlike_trials_are_never_pooled(tmp_path: Path, changes: dict[str, Any], label: str) -> None:
    results = load(written(tmp_path, config(), config(**changes)))
    assert len(results.groups) == 2
    labels = [group.optimizer for group in results.groups]
    assert len(set(labels)) == 2
    assert any(label in entry for entry in labels)


def test_warmup_constant_in_steps_or_in_examples_is_one_group(tmp_path: Path) -> None:
    sizes = (2, 8, 32)
    in_steps = [config(batch_size=size, schedule=Schedule(warmup_examples=10 * size)) for size in sizes]
    assert len(load(written(tmp_path / "steps", *in_steps)).groups) == 1
    in_examples = [config(batch_size=size, schedule=Schedule(warmup_examples=64)) for size in sizes]
    assert len(load(written(tmp_path / "examples", *in_examples)).groups) == 1
    both = [*in_steps, *(config(batch_size=size, schedule=Schedule(warmup_examples=20 * size)) for size in sizes)]
    assert sorted(group.optimizer for group in load(written(tmp_path / "both", *both)).groups) == [
        "adamw(warmup_steps=10.0)",
        "adamw(warmup_steps=20.0)",
    ]


def test_beta2_with_a_constant_half_life_in_examples_is_one_group(tmp_path: Path) -> None:
    half_life = [
        config(batch_size=size, optimizer=Choice(name="adamw", options={"betas": [0.9, 0.999**size]}))
        for size in (2, 8, 32)
    ]
    assert len(load(written(tmp_path, *half_life)).groups) == 1


@pytest.mark.parametrize("betas", [(0.0, 1.0), (0, None), ("a", "b"), (0.99, 1.0)])
def test_second_moments_without_a_half_life_are_told_apart(tmp_path: Path, betas: tuple[Any, Any]) -> None:
    both = [
        config(batch_size=size, optimizer=Choice(name="adamw", options={"betas": [0.9, beta]}))
        for size in (2, 8)
        for beta in betas
    ]
    groups = load(written(tmp_path, *both)).groups
    assert len({group.optimizer for group in groups}) == len(groups) == 2


def variants(*texts: str) -> list[TrialConfig]:
    return [config(optimizer=parse_choice(text)) for text in texts]


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["muon", "muon(nesterov=false)", "adamw"], ["muon", "muon(nesterov=false)", "adamw"]),
        (["muon(nesterov=false)", "adamw(eps=1)"], ["muon", "adamw"]),
        (["a(x=1, betas=[0.9, 0.95])", "a(x=1, betas=[0.9, 0.99])"], ["a(betas=[0.9, 0.95])", "a(betas=[0.9, 0.99])"]),
        (["a(x=true)", "a(x=1)", 'a(x="1")'], ["a(x=true)", "a(x=1)", 'a(x="1")']),
        (["a(x={k: 1})", "a(x={k: 2})", "a(x={})", "a(x=[])"], ["a(x.k=1)", "a(x.k=2)", "a(x={})", "a(x=[])"]),
    ],
)
def test_variants_are_called_by_what_differs(tmp_path: Path, texts: list[str], labels: list[str]) -> None:
    groups = load(written(tmp_path, *variants(*texts))).groups
    assert sorted(group.optimizer for group in groups) == sorted(labels)
    assert [group.at_any_budget for group in groups] == [group.optimizer for group in groups]
    assert sorted(str(group.choice) for group in groups) == sorted(str(parse_choice(text)) for text in texts)


def test_what_follows_from_a_budget_names_no_optimizer_at_any_budget(tmp_path: Path) -> None:
    every = [
        config(optimizer=Choice(name="adamw", options={"eps": eps}), schedule=Schedule(decay_examples=examples))
        for eps in (1, 2)
        for examples in (1000, 2000)
    ]
    groups = load(written(tmp_path, *every)).groups
    assert [group.at_any_budget for group in groups] == ["adamw(eps=1)"] * 2 + ["adamw(eps=2)"] * 2
    assert len({group.optimizer for group in groups}) == 4


def test_a_sweep_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "one", config())
    with pytest.raises(ConfigError, match="one is in two of the given folders"):
        load(tmp_path, tmp_path / "one")


def test_sweeps_of_one_name_and_folder_are_not_pooled(tmp_path: Path) -> None:
    for place in ("a", "b"):
        written(tmp_path / place / "quick", config())
    assert len(load(tmp_path / "a", tmp_path / "b").groups) == 2


def test_other_data_is_another_group(tmp_path: Path) -> None:
    written(tmp_path, config(), data_hash="aaa")
    Store(tmp_path).save(trial(config(seed=1), ROWS, TrialStatus.REACHED, data_hash="bbb"))
    assert len(load(tmp_path).groups) == 2


@pytest.mark.parametrize(
    "said", [{"tokens_per_example": 64}, {"example_unit": "document"}, {"metric_unit": "bits/byte"}]
)
def test_what_counts_or_measures_otherwise_is_another_group(tmp_path: Path, said: dict[str, Any]) -> None:
    """As of a workload of one's own that was edited between two runs: pooled, their steps would lie on one curve."""
    written(tmp_path, config())
    other = trial(config(seed=1), ROWS, TrialStatus.REACHED)
    assert other.workload is not None
    Store(tmp_path).save(other.replace(workload=replace(other.workload, **said)))
    groups = load(tmp_path).groups
    assert len(groups) == 2
    ((name, value),) = said.items()
    assert {getattr(group, name) for group in groups} == {
        value,
        getattr(trial(config(), ROWS, TrialStatus.REACHED).workload, name),
    }
    assert len({group.workload for group in groups}) == 2


def test_failed_trials_are_kept_with_their_group(tmp_path: Path) -> None:
    written(tmp_path, config())
    failed = trial(config(lr=2e-3), ROWS[:1], TrialStatus.FAILED).replace(workload=None, evaluations=[], message="boom")
    Store(tmp_path).save(failed)
    results = load(tmp_path)
    assert results.trials["status"].tolist() == ["REACHED", "FAILED"]
    assert len(results.groups) == 1


def test_a_trial_run_twice_counts_once_the_longer_final_run(tmp_path: Path) -> None:
    written(tmp_path, config())
    Store(tmp_path).save(trial(config(max_steps=10), ROWS[:3], TrialStatus.BUDGET_EXHAUSTED))
    Store(tmp_path).save(trial(config(max_steps=999), ROWS, TrialStatus.FAILED))
    results = load(tmp_path)
    assert results.trials["status"].tolist() == ["REACHED"]
    assert len(results.evaluations) == len(ROWS)
    assert "2 trials appear twice" in results.notes[0]


def test_an_unfinished_sweep_beside_a_finished_one_is_a_note(tmp_path: Path) -> None:
    written(tmp_path / "one", config())
    written(tmp_path / "two")
    results = load(tmp_path)
    assert len(results.groups) == 1
    assert "two has no finished trial yet" in results.notes[0]


def truncate(folder: Path) -> None:
    record = next(folder.glob("trials/*/record.parquet"))
    record.write_bytes(record.read_bytes()[:200])


def remove_record(folder: Path) -> None:
    next(folder.glob("trials/*/record.parquet")).unlink()


def foreign_record(folder: Path) -> None:
    record = next(folder.glob("trials/*/record.parquet"))
    pq.write_table(pq.read_table(record).replace_schema_metadata({}), record)


def edit_summary(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    record = next(folder.glob("trials/*/record.parquet"))
    table = pq.read_table(record)
    summary = json.loads(table.schema.metadata[b"cbs"])
    edit(summary)
    pq.write_table(table.replace_schema_metadata({b"cbs": json.dumps(summary)}), record)


def edit_manifest(folder: Path, text: str) -> None:
    (folder / "sweep.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "cannot read"),
        (remove_record, "run the sweep again"),
        (foreign_record, "not written by cbs"),
        (lambda folder: edit_summary(folder, lambda summary: summary.update(schema_version=99)), "schema version 99"),
        (lambda folder: edit_summary(folder, lambda summary: summary.pop("config")), "not a record of a trial"),
        (
            lambda folder: edit_summary(folder, lambda summary: summary.update(status="HAPPY")),
            "not a valid TrialStatus",
        ),
        (
            lambda folder: edit_summary(folder, lambda summary: summary["config"].pop("target")),
            "not a record of a trial",
        ),
        (lambda folder: edit_manifest(folder, "{"), "cannot read"),
        (lambda folder: edit_manifest(folder, "[]"), "not a JSON object"),
        (lambda folder: edit_manifest(folder, '{"schema_version": 3}'), "schema version 3"),
        (
            lambda folder: edit_manifest(folder, '{"schema_version": 1, "protocol": {"prune_factor": "x"}}'),
            "prune_factor",
        ),
        (lambda folder: edit_manifest(folder, '{"schema_version": 1, "protocol": 3}'), "prune_factor"),
        (lambda folder: shutil.rmtree(folder / "trials"), "no finished trial yet"),
        (lambda folder: (folder / "sweep.json").unlink(), "no sweep in"),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_bad_folders_give_one_clear_line(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    folder = written(tmp_path / "sweep", config())
    damage(folder)
    with pytest.raises(ResultsError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert "sweep" in str(caught.value)
