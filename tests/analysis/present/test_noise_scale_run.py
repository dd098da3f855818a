"""What cbs noise-scale shows."""

from __future__ import annotations

import copy
import math
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from analysis.present import noise_scale_run, style
from cbs.errors import ResultsError


def estimate(value: float | None, low: float | None, high: float | None, note: str = "") -> dict[str, Any]:
    return {
        "value": value, "low": low, "high": high, "confidence": 0.95, "signal": 0.1, "noise": 4.0, "steps": 32,
        "examples": 2048, "note": note,
    }  # fmt: skip


RUN: dict[str, Any] = {
    "config": {"optimizer": {"name": "adamw"}, "lr": 0.004, "batch_size": 64},
    "source": "split",
    "matched": "l1",
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
                "hessian": estimate(12.0, 3.0, None),
            },
            "layers": {"blocks.0[x]": estimate(41.2, 36.0, 48.1)},
        }
        for place in range(2)
    ],
}  # fmt: skip


def text(table: Any) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_one_row_per_phase_and_geometry() -> None:
    table = noise_scale_run.compute(RUN)
    assert len(table) == 6
    assert table["matched"].tolist() == [False, True, False] * 2
    assert math.isnan(table["noise_scale"][0])
    assert table["low"][0] == 70.0
    assert table[table["geometry"] == "hessian"]["examples"].tolist() == [2048, 4096]
    assert table[table["geometry"] == "l2"]["examples"].tolist() == [1024, 3072]


def test_the_table_says_everything() -> None:
    shown = text(noise_scale_run.terminal_table(RUN))
    for word in ("sequences", "adamw", "l2 (plain)", "l1 (matched)", "41.2", "[36, 48.1]", "[70, ∞]", "not positive"):
        assert word in shown, word
    assert "blocks.0[x]" in text(noise_scale_run.layer_table(RUN))


def test_files_are_written_and_the_figure_is_repeatable(tmp_path: Any) -> None:
    first = noise_scale_run.write(RUN, tmp_path / "a")
    second = noise_scale_run.write(RUN, tmp_path / "b")
    assert [path.name for path in first] == [
        "noise_scale.json", "noise_scale.csv", "noise_scale.pdf", "noise_scale.png",
    ]  # fmt: skip
    assert all(one.read_bytes() == two.read_bytes() for one, two in zip(first, second, strict=True))
    assert len(pd.read_csv(first[1])) == 6
    assert len(noise_scale_run.write(RUN, tmp_path / "c", figures=False)) == 2


def test_a_run_of_undefined_estimates_says_so_in_the_figure() -> None:
    run = copy.deepcopy(RUN)
    for phase in run["phases"]:
        for entry in phase["noise_scales"].values():
            entry["value"] = None
    with style.style():
        _, (axes,) = style.grid(1)
        noise_scale_run.draw(axes, noise_scale_run.compute(run))
    assert "undefined" in axes.texts[0].get_text()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="--output"):
        noise_scale_run.write(RUN, tmp_path / "file")
