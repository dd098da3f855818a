"""What cbs noise-scale shows."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from analysis import present
from analysis.present.figures import FIGURES
from extensions.noise_scale.tables import MeasuredRun


def estimate(value: float | None, low: float | None, high: float | None, note: str = "") -> dict[str, Any]:
    return {
        "value": value, "low": low, "high": high, "confidence": 0.95, "signal": 0.1, "noise": 4.0, "steps": 32,
        "examples": 2048, "note": note,
    }  # fmt: skip


RUN: dict[str, Any] = {
    "config": {"optimizer": {"name": "adamw"}, "lr": 0.004, "batch_size": 64},
    "source": "split",
    "matched": "l1",
    "symbols": {"l2": "Z_2", "l1": "Z_1", "nuclear": "Z_n"},
    "example_unit": "sequence",
    "tokens_per_example": 32,
    "phases": [
        {
            "first_step": 32 * place + 1, "last_step": 32 * place + 32, "first_examples": 2048 * place,
            "last_examples": 2048 * (place + 1), "train_loss": 3.0 - place,
            "noise_scales": {
                "l2": estimate(None, 70.0, None, "the mean estimate of |G|^2 is not positive (-0.1)")
                if place == 0
                else estimate(41.2, 36.0, 48.1),
                "l1": estimate(30.0 + place, None, None),
                "nuclear": estimate(12.0, 3.0, None),
            },
            "layers": {"blocks.0[x]": estimate(41.2, 36.0, 48.1)},
        }
        for place in range(2)
    ],
}  # fmt: skip


def printed(width: int = 100, *, layers: bool = False) -> str:
    console = Console(width=width, file=io.StringIO())
    present.show(MeasuredRun(RUN), console, wide=layers)
    return console.file.getvalue()


def test_one_row_per_phase_and_geometry() -> None:
    table = FIGURES["noise_scale_run"].compute(MeasuredRun(RUN))
    assert len(table) == 6
    assert table["matched"].tolist() == [False, True, False] * 2
    assert math.isnan(table["noise_scale"][0])
    assert table["low"][0] == 70.0
    assert table[table["geometry"] == "l2"]["examples"].tolist() == [1024, 3072]


def test_the_table_says_everything() -> None:
    shown = printed()
    for word in ("sequences", "adamw", "l2 (plain)", "l1 (matched)", "41.2", "[36, 48.1]", "above 70", "not positive"):
        assert word in shown, word
    assert "3 up to 2,048" in shown
    assert "a sequence is 32 tokens" in shown
    assert "blocks.0[x]" in printed(layers=True)
    assert "blocks.0[x]" not in shown


@pytest.mark.usefixtures("whole_figures")
def test_files_are_written_and_the_figure_is_repeatable(tmp_path: Path) -> None:
    first, second = (present.write(MeasuredRun(RUN), tmp_path / name) for name in ("a", "b"))
    assert {path.name for path in first} == {
        "noise_scale.json", "noise_scale.csv", "noise_scale.pdf", "noise_scale.png",
    }  # fmt: skip
    drawn = [place for place, path in enumerate(first) if path.suffix != ".json"]
    assert all(first[place].read_bytes() == second[place].read_bytes() for place in drawn)
    assert len(pd.read_csv(tmp_path / "a" / "noise_scale.csv")) == 6
    said = json.loads((tmp_path / "a" / "noise_scale.json").read_text())
    assert said == present.to_json(MeasuredRun(RUN), files=first)
    assert said["phases"] == RUN["phases"]
    assert len(present.write(MeasuredRun(RUN), tmp_path / "c", figures=None)) == 2
