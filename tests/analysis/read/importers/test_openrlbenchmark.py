"""The runs that Open RL Benchmark keeps, and the tables of means it writes beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.read.importers import import_runs
from cbs.errors import DataError
from tests.analysis.read.importers.sources import CURVES, curves_of, settings

BASE = {"step": "step"}
BOTH = {"optimizer": "adam", "lr": "1e-3", "batch_size": "4"}
RETURN = "charts/episodic_return"


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any], **about: Any) -> Path:
    """As the tool writes: a frame with its index, and the attributes of the run."""
    folder = top / "openrlbenchmark" / "cleanrl" / about.get("id", "3nhnaboz")
    folder.mkdir(parents=True)
    pd.DataFrame(rows).to_csv(folder / "run_df.csv")
    run = {"id": "3nhnaboz", "name": "Breakout-v5__ppo__1", "state": "finished", "config": config, "tags": []} | about
    (folder / "run.json").write_text(json.dumps(run))
    return top


def history(curve: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index, (step, value) in enumerate(curve.rows):
        told = {"_runtime": index, "_timestamp": 1.6e9, "global_step": step * curve.batch_size}
        rows += [told | {"_step": 2 * index, "losses/value_loss": 1.0}, told | {"_step": 2 * index + 1, RETURN: value}]
    return rows


def test_kept_runs_come_back_with_their_settings(tmp_path: Path) -> None:
    for index, curve in enumerate(CURVES[:3]):
        config = {"batch_size": curve.batch_size, "learning_rate": {"desc": None, "value": curve.lr}}
        write_run(tmp_path / "in", history(curve), config, id=f"id{index}", name=curve.name)
    columns = {"examples": "global_step", "batch_size": "config.batch_size", "lr": "config.learning_rate"}
    wanted = settings(metric=RETURN, columns=columns, constants={"optimizer": "adam"})
    imported = import_runs([tmp_path / "in"], tmp_path / "out", wanted)
    assert imported.detected == [f"{tmp_path / 'in'} read as openrlbenchmark: 3 run_df.csv"]
    assert list(curves_of(tmp_path / "out").values()) == [curve.rows for curve in CURVES[:3]]
    assert [trial.config.lr for trial in imported.trials] == [curve.lr for curve in CURVES[:3]]


def test_one_history_is_no_export_of_weights_and_biases(tmp_path: Path) -> None:
    write_run(tmp_path / "in", history(CURVES[0]), {})
    source = next((tmp_path / "in").rglob("run_df.csv"))
    wanted = settings(metric=RETURN, columns={"examples": "global_step"}, constants=BOTH | {"batch_size": "2"})
    imported = import_runs([source], tmp_path / "out", wanted)
    assert imported.format == "openrlbenchmark"
    assert curves_of(tmp_path / "out") == {"3nhnaboz": CURVES[0].rows}


def test_the_axis_is_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "in", history(CURVES[0]), {})
    with pytest.raises(DataError, match=r"environment steps .*--column examples=global_step .*--column step=NAME"):
        import_runs([tmp_path / "in"], tmp_path / "out", settings(metric=RETURN, constants=BOTH))


def test_a_table_of_means_is_refused_with_the_remedy(tmp_path: Path) -> None:
    frame = pd.DataFrame({"cleanrl/ppo ({})": ["1705.80 ± 439.74"], "baselines": ["nan ± nan"]}, index=["Alien-v4"])
    frame.to_csv(tmp_path / "compare.csv")
    with pytest.raises(DataError, match=r"a mean and a deviation per environment, no curves; import .*--scan-history"):
        import_runs([tmp_path / "compare.csv"], tmp_path / "out", settings(constants=BOTH))


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", r"cannot read .*run\.json"), ('{"_attrs": {}}', "old version"), ("[]", "it is not a mapping")],
)
def test_a_broken_description_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    write_run(tmp_path / "in", history(CURVES[0]), {})
    next((tmp_path / "in").rglob("run.json")).write_text(content)
    wanted = settings(metric=RETURN, columns={"examples": "global_step"}, constants=BOTH)
    with pytest.raises(DataError, match=words) as caught:
        import_runs([tmp_path / "in"], tmp_path / "out", wanted)
    assert "\n" not in str(caught.value)


def test_nothing_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no runs as openrlbenchmark at .*run_df\.csv"):
        import_runs([tmp_path], tmp_path / "out", settings(), format="openrlbenchmark")
