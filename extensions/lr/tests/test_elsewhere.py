"""``cbs lr`` of tables of final losses, of runs past their target at first sight, of tuned options and of widths."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.config import AnalysisConfig
from analysis.present.figures import FIGURES
from analysis.read.importers import Settings, import_runs
from extensions.lr.learning_rates import LearningRates, learning_rates
from tests.analysis.present.test_figures_of_papers import QUICK, drawn
from tests.analysis.questions import test_first_evaluations as late
from tests.analysis.read.importers.test_final_losses import ASKED, table
from tests.factories import Truth, sweep
from tests.sweeps.joint_worlds import MOMENTA, TRUTH
from tests.sweeps.test_axes import WORLD
from tests.sweeps.test_axes import stored as stored


@pytest.mark.parametrize(("length", "format"), [("tokens", "final_losses"), ("step", "table")])
def test_they_rank_learning_rates_whatever_the_format(length: str, format: str, tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", length=length)
    if format == "table":  # every run has a name, and all end at one step
        lines = source.read_text().split("\n")
        lines = [lines[0], *(line.replace(f",{8192 // int(line.split(',')[0])},", ",100,") for line in lines[1:])]
        source.write_text("\n".join(f"{'run' if at == 0 else at},{line}" for at, line in enumerate(lines)))
    assert import_runs([source], tmp_path / "out", Settings(**ASKED)).format == format
    (entry,) = learning_rates(tmp_path / "out", AnalysisConfig(resamples=100)).entries
    assert [best.edge for best in entry.law.optima] == [0] * 4
    assert [best.lr for best in entry.law.optima] == pytest.approx(
        [1e-3 * math.sqrt(b) for b in (8, 16, 32, 64)], rel=0.03
    )
    assert entry.protocols == ()


def test_the_loss_of_a_run_that_failed_ranks_nothing(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    rows = [f"{b},{lr},{100},{2 + math.log2(lr / b) ** 2},ok" for b in (8, 16, 32, 64) for lr in (b / 2, b, 2 * b)]
    rows += ["8,16,100,1,CUT", "8,4,3,0.5,CUT"]
    seeds = [f"{row},{at // 12}" for at, row in enumerate(rows)]
    source.write_text("\n".join(["batch_size,lr,step,loss,status,seed", *seeds]))
    import_runs([source], tmp_path / "out", Settings(**ASKED, statuses={"CUT": "FAILED"}))
    (entry,) = learning_rates(tmp_path / "out", AnalysisConfig(resamples=100)).entries
    assert [best.lr for best in entry.law.optima] == pytest.approx([8, 16, 32, 64], rel=0.01)


def test_no_learning_rate_is_best_where_several_are_only_bounded(tmp_path: Path) -> None:
    found = learning_rates(late.sweep(tmp_path, 5000), late.QUICK)
    (entry,) = found.entries
    assert {best.batch_size for best in entry.law.optima} == {50, 100, 200}
    assert all(best.lr == pytest.approx(1e-3, rel=0.2) for best in entry.law.optima)
    assert "at batch size 400, 800, 1600 several learning rates were past the target" in found.notes[0]


def test_the_law_of_the_learning_rate_is_that_of_the_whole_recipe(
    stored: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (entry,) = learning_rates(stored, AnalysisConfig(resamples=200)).entries
    for optimum in entry.law.optima:
        momentum = MOMENTA[WORLD.best_momentum(optimum.batch_size)]
        true = 3.0 * (1.0 - momentum) * math.sqrt(optimum.batch_size / TRUTH) * 1.3
        assert optimum.log_lr == pytest.approx(math.log(true), abs=0.35)
        assert optimum.edge == 0
    code, out, _ = run("lr", stored, "--wide", "--resamples", "100", "-o", tmp_path / "lr", "--figures", "none")
    assert code == 0
    assert "best of the axes" in out
    assert "momentum=0.95" in out


def test_the_best_rate_drifts_with_the_inverse_of_the_width(tmp_path: Path) -> None:
    sweep(tmp_path, {"muon": Truth(noise=0.02)}, batch_sizes=(16,), seeds=2)
    found = learning_rates(tmp_path, QUICK)
    (entry,) = found.entries
    kind = FIGURES["width_drift"]
    assert kind.compute(found).empty

    def of(width: int) -> LearningRates:
        group = dataclasses.replace(entry.answer.group, workload_options={"width": width})
        return dataclasses.replace(entry, answer=dataclasses.replace(entry.answer, group=group))  # type: ignore[return-value]

    assert kind.compute(dataclasses.replace(found, entries=(of(16),))).empty, "one width"
    table = kind.compute(dataclasses.replace(found, entries=(of(16), of(64))))
    assert list(table["width"]) == [16, 64]
    assert set(table["lr"]) == {entry.law.optima[0].lr}
    figure = drawn("width_drift", table.assign(lr=[2.0, 1.0], low=[1.5, 0.8], high=[2.5, 1.2]))
    (legend,) = [axes.get_legend() for axes in figure.axes]
    assert legend.get_texts()[-1].get_text() == "ln lr = -0.231 + 14.8 / width"  # ln 2 / (1/16 - 1/64), through both
