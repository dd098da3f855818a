"""Settings that programs state, curves that are the same though the trials should differ, and programs that ended
earlier than others."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.read.doubtful import shared_runs, without_copies
from analysis.read.groups import warmup_steps
from analysis.read.results import Results, load
from cbs.trial.config import OF_TRAINER, Choice, TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from tests import factories

CURVE = [5.0, 4.0, 3.5, 3.25, 3.0]


def trial(values: list[float] = CURVE, **changes: Any) -> dict[str, Any]:
    plain = {
        "sweep": "x",
        "root": changes.get("sweep", "x"),
        "group": 0,
        "tuned": "",
        "choice": Choice(name="sgd"),
        "lr": 0.1,
        "batch_size": 8,
        "seed": 0,
    }
    return {**plain, "steps": [0, 5, 10, 15, 20, 25][: len(values)], "values": values, **changes}


def notes(*trials: dict[str, Any]) -> list[str]:
    told: list[str] = []
    without_copies(pd.DataFrame(list(trials)), told)
    return told


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("seed", 1, "the seed alone"),
        ("lr", 0.2, "the learning rate alone"),
        ("batch_size", 16, "the batch size alone"),
        ("tuned", "momentum=0.9", "the options of --axis alone"),
    ],
)
def test_what_was_not_used_is_said(name: str, value: Any, words: str) -> None:
    (note,) = notes(trial(), trial(**{name: value}), trial([5.0, 4.1, 3.6, 3.3]))
    assert note.startswith("sweep x, sgd: 2 trials that differ in ")
    assert words in note


def test_one_that_was_stopped_earlier_is_the_same_run() -> None:
    assert len(notes(trial(), trial(CURVE[:4], seed=1))) == 1
    assert len(notes(trial(), trial([*CURVE[:4], 2.5], seed=1))) == 0


@pytest.mark.parametrize(
    "values", [[5.0, 4.0, 3.5], [5.0, 4.0, 4.0, 4.0, 4.0], [5.0, math.nan, math.nan, math.nan], []]
)
def test_few_or_equal_values_tell_nothing(values: list[float]) -> None:
    assert notes(trial(values), trial(values, seed=1)) == []


def test_results_without_curves_that_are_those_of_other_seeds_to_the_last_digit_are_said() -> None:
    ends = {8: 1.234567, 16: 1.345678, 32: 1.456789}
    first = [trial([end], steps=[20], batch_size=size) for size, end in ends.items()]
    copies = [{**row, "seed": 1} for row in first]
    told: list[str] = []
    kept = without_copies(pd.DataFrame([*first, *copies]), told)
    assert kept["seed"].tolist() == [0, 0, 0]
    (note,) = told
    assert note.startswith("sweep x, sgd: 3 trials have, to the last digit, the result of another seed")
    assert notes(*first, *copies[:2]) == []  # two may be chance
    assert notes(*first, *({**row, "steps": [30]} for row in copies)) == []
    rounded = [{**row, "values": [round(row["values"][0], 2)]} for row in first]
    assert notes(*rounded, *({**row, "seed": 1} for row in rounded)) == []
    many = [
        trial([1.2345678 + place * 1e-5], steps=[20], lr=place, seed=seed) for place in range(60) for seed in (0, 1)
    ]
    for row in many[1:-6:2]:
        row["values"] = [row["values"][0] + 1e-6]
    assert len(notes(*many)) == 1
    many[-1]["values"], many[-3]["values"] = [2.34567], [2.345678]
    assert notes(*many) == []


def test_runs_that_are_one_count_as_one_the_longest() -> None:
    own = [5.0, 4.1, 3.6, 3.3, 3.1]
    trials = [trial(CURVE[:4], seed=7), trial(), trial(seed=1), trial(own, seed=2), trial(lr=0.2), trial(batch_size=16)]
    kept = without_copies(pd.DataFrame(trials), [])
    assert list(zip(kept["seed"], kept["lr"], kept["batch_size"], strict=True)) == [
        (0, 0.1, 8), (2, 0.1, 8), (0, 0.2, 8), (0, 0.1, 16),
    ]  # fmt: skip
    assert kept.index.tolist() == [0, 1, 2, 3]


def test_runs_that_lie_in_two_sweeps_are_said() -> None:
    """A copied folder, or one beside what it was merged into. One configuration with another curve is a new run."""
    rows = [
        trial(sweep="a", trial_id="1"),
        trial(sweep="a", trial_id="2", seed=1, values=[5.0, 4.2, 3.7, 3.3]),
        trial(sweep="b", trial_id="1"),
        trial(sweep="b", trial_id="2", seed=1, values=[5.0, 4.2, 3.7, 3.4]),
        trial(sweep="c", trial_id="3", seed=2),
    ]
    (note,) = shared_runs(pd.DataFrame(rows))
    assert note.startswith("1 trials of sweep b are those of sweep a, bit by bit")
    assert list(shared_runs(pd.DataFrame(rows[:2]))) == []
    (note,) = shared_runs(pd.DataFrame([rows[0] | {"root": "backup/a"}, rows[0]]))
    assert note.startswith("1 trials of sweep a are those of sweep backup/a, bit by bit")


SPENT, REACHED = TrialStatus.BUDGET_EXHAUSTED, TrialStatus.REACHED
ODD = "in 1 trials the program ended earlier than in others of their batch size (at step 20 of 100 at"


@pytest.mark.parametrize(
    ("workload", "budget", "ends", "told"),
    [
        ("command", 10**9, [(8, 20, SPENT), (8, 100, SPENT)], True),
        ("command", 10**9, [(8, 20, SPENT), (8, 100, REACHED)], True),
        ("command", 10**9, [(8, 95, SPENT), (8, 100, SPENT)], False),
        ("command", 10**9, [(4, 20, SPENT), (8, 100, SPENT)], False),
        ("command", 10**9, [(8, 20, REACHED), (8, 100, SPENT)], False),
        ("command", 20, [(8, 20, SPENT), (8, 100, SPENT)], False),
        ("synthetic", 10**9, [(8, 20, SPENT), (8, 100, SPENT)], False),
    ],
)
def test_it_is_told_with_the_place(
    tmp_path: Path, workload: str, budget: int, ends: list[tuple[int, int, TrialStatus]], told: bool
) -> None:
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest({"name": "one", "protocol": {"prune_factor": None}})
    plain = {"workload": Choice(name=workload), "optimizer": Choice(name="adamw"), "target": factories.TARGET}
    for count, (size, last, status) in enumerate(ends, 1):
        config = TrialConfig(**plain, lr=count / 100, batch_size=size, seed=0, max_steps=budget)
        rows = [(0, 5.6), (10, 4.0 + count), (last, 2.3 if status is REACHED else 3.0 + count)]
        store.save(factories.trial(config, rows, status))
    notes = load(tmp_path).notes
    assert (
        any(note.startswith(f"sweep one, adamw: {ODD} batch size 8 and learning rate 0.01)") for note in notes) == told
    )
    assert len(notes) == told


TARGET = factories.TARGET
FEW: dict[str, Any] = {"batch_sizes": (2, 8, 32, 128), "lrs": factories.LRS[1:5], "seeds": 2}
PROGRAM = Choice(name="command", options={"command": "train"})


def program(result: TrialResult, stated: dict[str, Any], *, older: bool = False) -> TrialResult:
    """The trial as one of a program, as an earlier version stored it, or as it is stored now."""
    told = {"workload": PROGRAM.__dict__} | ({} if older else dict.fromkeys(OF_TRAINER, "unknown"))
    return result.replace(config=TrialConfig.from_dict(result.config.to_dict() | told), stated=stated)


def written(root: Path, results: list[TrialResult], **manifest: Any) -> Results:
    store = Store(root)
    store.prepare()
    store.write_manifest({"name": root.name, "protocol": {"prune_factor": None}, **manifest})
    for result in results:
        store.save(result)
    return load(root)


def stating(
    batch_size: int = 8, stated: dict[str, Any] | None = None, *, lr: float = 1e-3, **changes: Any
) -> TrialResult:
    plain = {"workload": PROGRAM, "optimizer": Choice(name="adamw"), "target": TARGET, "max_steps": 100}
    config = TrialConfig(**plain, lr=lr, batch_size=batch_size, seed=0, unknown=OF_TRAINER)
    rows = [(0, 5.6), (1, 4.0), (10, 3.0), (40, 2.3)]
    return factories.trial(config, rows, TrialStatus.REACHED).replace(stated=stated or {})


@pytest.mark.parametrize(
    ("kind", "in_warmup"),
    [
        ("ours", True),
        ("older", False),
        ("imported", False),
        ("silent", False),
        ("states none", False),
        ("states it", True),
    ],
)
def test_a_warmup_counts_where_the_program_says_it_and_nowhere_else(tmp_path: Path, kind: str, in_warmup: bool) -> None:
    made = list(factories.sweep(tmp_path / "ours", warmup_steps=100_000, **FEW).results(with_steps=True))
    if kind != "ours":
        stated = {"states none": {"warmup_steps": 0}, "states it": {"warmup_steps": 100_000}}.get(kind, {})
        if kind != "imported":
            made = [program(result, stated, older=kind == "older") for result in made]
        written(tmp_path / "other", made, **({"imported": []} if kind == "imported" else {}))
    (fit,) = analyze(tmp_path / ("ours" if kind == "ours" else "other"), AnalysisConfig(resamples=100)).to_json()[
        "fits"
    ]
    assert (fit["verdict"] == "the warmup decides") is in_warmup


def test_what_programs_state_tells_groups_apart_and_a_trial_that_is_silent_takes_what_the_others_agree_on(
    tmp_path: Path,
) -> None:
    def labels(name: str, *results: TrialResult) -> list[str]:
        return sorted(group.optimizer for group in written(tmp_path / name, list(results)).groups)

    in_steps = [stating(size, {"warmup_steps": 10}) for size in (4, 8, 16)]
    in_examples = [stating(size, {"warmup_steps": 80 / size}) for size in (4, 8, 16)]
    assert labels("steps", *in_steps) == labels("examples", *in_examples) == ["adamw"]
    half, full = {"precision": "bfloat16"}, {"precision": "float32"}
    silent = stating(lr=2e-3).replace(status=TrialStatus.FAILED, steps_to_target=None)
    assert labels("agreed", stating(4, half), stating(8, half), silent) == ["adamw"]
    unlike = labels("unlike", stating(4, half), stating(8, full))
    assert unlike == ["adamw(stated.precision=bfloat16)", "adamw(stated.precision=float32)"]
    assert len(labels("open", stating(4, half), stating(8, full), silent)) == 3


@pytest.mark.parametrize(
    ("parent", "steps"),
    [
        (None, 20.0),
        ({"examples": 0, "warmup_examples": 0}, 20.0),
        ({"examples": 60, "warmup_examples": 0}, 5.0),
        ({"examples": 800, "warmup_examples": 0}, 0.0),
        ({"examples": 800, "warmup_examples": 40}, 10.0),
    ],
)
def test_what_is_left_of_the_warmup(parent: dict[str, int] | None, steps: float) -> None:
    config = {"batch_size": 4, "schedule": {"warmup_examples": 80}} | ({} if parent is None else {"parent": parent})
    assert warmup_steps(config) == steps
