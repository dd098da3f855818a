"""Curves of known truth as people log them: what makes their crossings wrong is said, fine ones are left in peace."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import Analysis, analyze
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.questions.compare.optimizers import compare
from analysis.read.importers import Settings, import_runs
from analysis.read.results import of_training
from tests.factories import LRS, Truth, sweep

SIZES, CRITICAL, LEAST = (8, 16, 32, 64, 128, 256, 512), 64.0, 400.0
QUICK = AnalysisConfig(resamples=100)


def logged(
    *, noise: float = 0.0, every: int = 0, seeds: int = 3, seed: int = 0, metric: str = "val_loss"
) -> pd.DataFrame:
    """Power laws that pass 3.0 after ``LEAST (1 + CRITICAL/B)`` steps, 4 % more or less by seed, three learning rates
    of which the middle one is the best."""
    rng, parts = np.random.default_rng(seed), []
    for size in SIZES:
        for lr in (1e-3, 2e-3, 4e-3):
            for number in range(seeds):
                steps_to_target = LEAST * (1 + CRITICAL / size) * math.exp(rng.normal(0, 0.04))
                steps_to_target *= 1 + 0.2 * abs(math.log2(lr / 2e-3))
                last = 3 * steps_to_target
                steps = np.arange(every, last, every) if every else np.unique(np.round(1.04 ** np.arange(250)))
                steps = steps[steps <= last]
                values = 2.0 + (steps / steps_to_target) ** -0.3 + rng.normal(0, noise, len(steps))
                about = {
                    "run": f"{size}-{lr}-{number}",
                    "batch_size": size,
                    "optimizer": "adamw",
                    "lr": lr,
                    "seed": number,
                }
                parts.append(pd.DataFrame({"step": steps, metric: values} | about))
    return pd.concat(parts)


def imported(table: pd.DataFrame, top: Path, **changes: Any) -> tuple[list[str], Analysis]:
    """What the import says, and the analysis."""
    given = {
        "metric": "val_loss",
        "direction": "below",
        "target": 3.0,
        "metric_unit": "nats",
        "example_unit": "sequence",
    }
    table.to_csv(top / "runs.csv", index=False)
    found = import_runs([top / "runs.csv"], top / "out", Settings(**(given | changes)))
    return found.notes, analyze(top / "out", QUICK)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02])
def test_healthy_curves_are_left_in_peace(tmp_path: Path, noise: float) -> None:
    notes, found = imported(logged(noise=noise), tmp_path)
    (answer,) = found.answers
    assert (notes, found.notes) == ([], ())
    assert answer.verdict is Verdict.OK
    assert answer.critical_batch_size == pytest.approx(CRITICAL, rel=0.2)


def test_one_lucky_evaluation_of_many_is_said_with_by_how_much(tmp_path: Path) -> None:
    _, found = imported(logged(noise=0.05, every=10), tmp_path)
    (answer,) = found.answers
    assert answer.verdict is Verdict.NOISY_STEPS
    assert min(point.lead for point in answer.points) > 0.1
    early = [math.log(LEAST * (1 + CRITICAL / p.batch_size) / p.steps_to_target) for p in answer.points]
    assert np.mean(early) == pytest.approx(np.mean([point.lead for point in answer.points]), rel=0.3)


@pytest.mark.parametrize(
    ("metric", "said"),
    [("train/loss", 1), ("trainLoss", 1), ("loss_smoothed", 1), ("running loss", 1), ("training_val_loss", 0),
     ("val_loss", 0), ("eval/smoothed", 0), ("loss", 0), ("constrained_loss", 0), ("validation_loss", 0)],
)  # fmt: skip
def test_a_metric_of_the_batches_trained_on_is_told_by_its_name(metric: str, said: int) -> None:
    assert bool(of_training(metric)) == said


def test_a_warmup_beyond_the_target_is_the_verdict(tmp_path: Path) -> None:
    truth = {"adamw": dataclasses.replace(Truth(lr_at_1=2e-3, lr_power=0.0), noise=0.03)}
    for warmup, verdict in ((10, Verdict.OK), (250, Verdict.IN_WARMUP)):
        sweep(
            tmp_path / str(warmup),
            truth,
            batch_sizes=(2, 8, 32, 128, 512),
            lrs=LRS[:5],
            seeds=3,
            growth=1.2,
            warmup_steps=warmup,
        )
        (answer,) = analyze(tmp_path / str(warmup), QUICK).answers
        assert answer.verdict is verdict
    assert (
        "the warmup of the learning rate lasts longer than the run to the target at batch size 128 (250"
        in answer.advice
    )


def test_an_accuracy_that_is_taken_for_a_loss_is_asked_about(tmp_path: Path) -> None:
    table = logged()
    notes, _ = imported(table.assign(val_loss=1 / table["val_loss"]), tmp_path, target=1 / 3)
    assert "val_loss gets worse along 63 of 63 runs: is below the right direction?" in notes


def test_a_counter_that_began_again_is_said(tmp_path: Path) -> None:
    table = logged(every=20)
    resumed = (table["batch_size"] == 8) & (table["step"] > 1000)
    notes, _ = imported(table.assign(step=table["step"].where(~resumed, table["step"] - 990)), tmp_path)
    assert any(note.startswith("in 9 runs the step counter starts again: if it did so when") for note in notes)


def test_models_of_two_sizes_under_one_name_are_two_curves(tmp_path: Path) -> None:
    """Pooled, they would be one curve whose learning rates are those of two models."""
    small, large = logged().assign(parameters=10**7), logged(seed=1).assign(parameters=10**8)
    large["run"], large["lr"] = large["run"] + "-large", 0.9 * large["lr"]
    _, found = imported(pd.concat([small, large]), tmp_path)
    told = {answer.group.workload: answer.group.parameters for answer in found.answers}
    assert told == {"imported(parameters=10000000)": 10**7, "imported(parameters=100000000)": 10**8}
    compared = compare(tmp_path / "out", QUICK)
    assert all("adamw is the only optimizer: there" in each.notes[-1] for each in compared.comparisons)
