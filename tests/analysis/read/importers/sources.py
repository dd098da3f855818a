"""Sources of every format, written from the same curves."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.read.importers import Settings
from cbs.trial.store import Store
from tests.factories import SLOPE

GIVEN = {"metric": "loss", "direction": "below", "target": 2.4, "metric_unit": "nats", "example_unit": "sequence"}
FLAGS = [text for name, value in GIVEN.items() for text in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True)
class Curve:
    """A run whose metric is linear in log step and crosses 2.4 at ``steps_to_target``."""

    batch_size: int
    lr: float
    steps_to_target: float
    last: int = 4096

    @property
    def name(self) -> str:
        return f"adamw-b{self.batch_size}-lr{self.lr}-s0"

    @property
    def rows(self) -> list[tuple[int, float]]:
        steps = [2**power for power in range(1 + int(math.log2(self.last)))]
        return [(0, 5.6), *((step, 2.4 + SLOPE * math.log(self.steps_to_target / step)) for step in steps)]


CURVES = [
    Curve(batch_size, lr, (100 + 3200 / batch_size) * (1 + 0.2 * abs(math.log2(lr / 2e-3))))
    for batch_size in (2, 8, 32, 128, 512)
    for lr in (1e-3, 2e-3, 4e-3)
]
"""Critical batch size 32: S = 100 + 3200 / B at the best learning rate, 2e-3."""


def settings(**changes: Any) -> Settings:
    return Settings(**{**GIVEN, **changes})


def long_rows(curves: Iterable[Curve] = CURVES) -> list[dict[str, Any]]:
    return [
        {
            "run": curve.name,
            "step": step,
            "loss": value,
            "batch_size": curve.batch_size,
            "optimizer": "adamw",
            "lr": curve.lr,
            "seed": 0,
        }
        for curve in curves
        for step, value in curve.rows
    ]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def trainer_state(rows: Iterable[tuple[int, float]], **changes: Any) -> str:
    """As the Trainer writes it: training logs between the evaluations."""
    log: list[dict[str, Any]] = []
    for step, value in rows:
        log.append({"loss": value, "learning_rate": 1e-4, "epoch": 0.1, "step": step})
        log.append({"eval_loss": value, "eval_runtime": 0.1, "epoch": 0.1, "step": step})
    last = log[-1]["step"] if log else 0
    return json.dumps({"global_step": last, "train_batch_size": 4, "log_history": log} | changes)


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Run -> curve of an imported folder."""
    return {
        result.message.removeprefix("imported from run "): [(row.step, row.value) for row in result.evaluations]
        for result in Store(folder).results()
    }
