"""Settings of programs that train: unknown until the program says them, and then they count."""

from pathlib import Path
from typing import Any

import pytest

from analysis.config import AnalysisConfig
from analysis.questions.analyze.critical_batch_sizes import analyze
from analysis.read.groups import warmup_steps
from analysis.read.results import Results, load
from cbs.trial.config import OF_TRAINER, Choice, TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from tests import factories

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


def trial(
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

    in_steps = [trial(size, {"warmup_steps": 10}) for size in (4, 8, 16)]
    in_examples = [trial(size, {"warmup_steps": 80 / size}) for size in (4, 8, 16)]
    assert labels("steps", *in_steps) == labels("examples", *in_examples) == ["adamw"]
    half, full = {"precision": "bfloat16"}, {"precision": "float32"}
    silent = trial(lr=2e-3).replace(status=TrialStatus.FAILED, steps_to_target=None)
    assert labels("agreed", trial(4, half), trial(8, half), silent) == ["adamw"]
    unlike = labels("unlike", trial(4, half), trial(8, full))
    assert unlike == ["adamw(stated.precision=bfloat16)", "adamw(stated.precision=float32)"]
    assert len(labels("open", trial(4, half), trial(8, full), silent)) == 3


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
