"""``cbs noise-scale`` from the command line, and what it shows."""

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
from extensions.noise_scale.prices import NOISE_STEPS, noise_scale_price
from extensions.noise_scale.tables import MeasuredRun
from sweeps.outlook import price as module
from sweeps.outlook.price import CriticalRun, price_lines, price_report
from tests.sweeps.test_cost import GPT2, LARGE, expecting


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


@pytest.mark.parametrize(
    ("value", "unseen", "said"),
    [
        (
            40.0,
            0.5,
            "may share up to 50 % of the signal without a note, if their inputs do not show it: the noise scale",
        ),
        (40.0, 1.0, "may share 100 % of the signal without a note, if their inputs do not show it"),
        (None, 0.5, "may share up to 50 % of the signal without a note, if their inputs do not show it"),
    ],
)
def test_what_a_batch_may_share_unseen_is_said_where_everything_is(
    value: float | None, unseen: float, said: str
) -> None:
    last = RUN["phases"][1]
    scales = last["noise_scales"] | {"l2": estimate(value, 36.0, 48.1) | {"unseen": unseen}}
    run = MeasuredRun(RUN | {"phases": [RUN["phases"][0], last | {"noise_scales": scales}]})
    shown = {wide: io.StringIO() for wide in (False, True)}
    for wide, file in shown.items():
        present.show(run, Console(width=200, file=file), wide=wide)
    (line,) = (line for line in shown[True].getvalue().splitlines() if "without a note" in line)
    assert said in line
    # (40 + 64/2) / (1 - 1/2)
    assert line.endswith("would be 144" if value and unseen < 1 else "do not show it")
    assert "without a note" not in shown[False].getvalue()


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


@pytest.mark.parametrize(("hidden", "explained"), [(True, ["interval not known"]), (False, [])])
def test_a_hollow_mark_is_explained_where_there_is_one(hidden: bool, explained: list[str]) -> None:
    table = FIGURES["noise_scale_run"].compute(MeasuredRun(RUN))
    drawn = FIGURES["noise_scale_run"].figure(table if hidden else table[table["geometry"] == "nuclear"])
    assert [text.get_text() for legend in drawn.legends for text in legend.get_texts()] == explained


QUADRATIC = ("noise-scale", "--workload", "noisy_quadratic", "--set", "workload.dimension=50", "--steps", 64)


def test_noise_scale_as_json_and_as_a_table_with_its_figure(run, tmp_path):
    code, out, _ = run(*QUADRATIC, "--json", "-o", tmp_path / "one")
    assert code == 0
    report = json.loads(out)
    assert [phase["last_step"] for phase in report["phases"]] == [8, 16, 32, 64]
    assert {"l2", "l1", "preconditioned"} <= set(report["phases"][0]["noise_scales"])
    assert report["phases"][-1]["noise_scales"]["l2"]["noise"] > 0
    assert 0 < report["phases"][-1]["noise_scales"]["l2"]["unseen"] <= 1
    assert report["phases"][-1]["noise_scales"]["l1"]["unseen"] is None
    assert json.loads((tmp_path / "one" / "noise_scale.json").read_text()) == report
    code, out, _ = run(*QUADRATIC, "--geometry", "l2", "--wide", "-o", tmp_path / "two")
    assert code == 0
    assert "l2 (plain)" in out
    assert "theta" in out
    assert (tmp_path / "two" / "noise_scale.png").exists()


def test_noise_scale_check_says_whether_a_loop_over_examples_agrees(run, monkeypatch):
    code, out, _ = run("noise-scale", "--workload", "noisy_quadratic", "--check")
    assert code == 0
    assert "source 'split' agrees with a loop over 8 examples in every layer (1)" in out
    monkeypatch.setattr("cbs.noise_scale.check.AGREE", -1.0)
    code, out, _ = run("noise-scale", "--workload", "noisy_quadratic", "--batch-size", 4, "--check", "--json")
    found = json.loads(out)
    assert code == 1
    assert not found["ok"]
    assert found["examples"] == 4


def test_measurements_on_one_run_are_named_where_a_sweep_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    large = expecting((2000.0, 4e6), **LARGE)
    _, line = price_lines(price_report(large, None, 1))
    assert f"({NOISE_STEPS} measured steps at B_crit)" in line
    small = expecting((2000.0, 4e6), workload=GPT2)
    assert price_report(small, None, 1)["instead"] is None
    monkeypatch.setattr(module, "OUT_OF_REACH", 0.1)
    assert price_report(small, None, 1)["instead"] is not None
    _, line = price_lines(price_report(expecting(None, **LARGE), None, 1))
    assert "cbs noise-scale a part of one run (" in line


def test_the_noise_scale_costs_its_steps_each_dearer_than_a_plain_one() -> None:
    found = noise_scale_price(CriticalRun(examples=1e6, steps=1000.0, gpu_hours=100.0), 2.0)
    assert found.examples == pytest.approx([NOISE_STEPS * 1000.0] * 3)
    assert found.gpu_hours == pytest.approx([100.0 * NOISE_STEPS / 1000 * 1.9] * 3)
    assert found.dollars == pytest.approx([200.0 * NOISE_STEPS / 1000 * 1.9] * 3)
