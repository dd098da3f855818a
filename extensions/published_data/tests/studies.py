"""Studies as Shallue et al. (2019) released them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.analysis.read.importers.sources import write_csv


def batch_science(
    top: Path,
    batch_size: int,
    trials: Mapping[int, tuple[str, float, Sequence[tuple[int, float]]]],
    *,
    dataset: str = "mnist",
    optimizer: str = "nesterov_momentum",
    **changes: Any,
) -> Path:
    """One study: trial id -> status, learning rate, curve."""
    study = top / dataset / "simple_cnn" / optimizer / str(batch_size)
    study.mkdir(parents=True)
    about = {
        "batch_size": batch_size,
        "dataset": dataset,
        "early_stopping": False,
        "model": "simple_cnn",
        "optimizer": optimizer,
        "parameter_configs": {"learning_rate": {"type": "DOUBLE", "scale": "LOG_SCALE"}},
        "train_steps": 1000,
    }
    (study / "study.json").write_text(json.dumps(about | changes))
    for trial_id, (status, lr, rows) in trials.items():
        folder = study / str(trial_id)
        folder.mkdir()
        parameters = {"learning_rate": lr, "momentum": 0.9 + trial_id / 1000}
        steps = rows[-1][0] if rows else 0
        (folder / "metadata.json").write_text(
            json.dumps({"parameters": parameters, "status": status, "steps": steps, "trial_id": trial_id})
        )
        table = [{"step": step, "train/loss": value + 1, "val/loss": value} for step, value in rows]
        if table:
            write_csv(folder / "measurements.csv", table)
        else:
            (folder / "measurements.csv").write_text("step,train/loss,val/loss\n")
    return study
