"""What ``cbs lr`` prints, writes and draws, of sweeps and of tables of final losses, tuned options and widths."""

import dataclasses
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from analysis import present
from analysis.config import AnalysisConfig
from analysis.present.figures import FIGURES
from analysis.read.importers import Settings, import_runs
from extensions.lr.learning_rates import LearningRates, learning_rates
from tests.analysis.present.test_style import QUICK, drawn
from tests.analysis.questions import test_first_evaluations as late
from tests.analysis.read.importers.test_final_losses import ASKED, table
from tests.factories import Truth, sweep
from tests.sweeps.joint_worlds import MOMENTA, TRUTH
from tests.sweeps.test_axes import WORLD
from tests.sweeps.test_axes import stored as stored

SIZES = (2, 8, 32, 128, 512)
LRS = tuple(5e-4 * 2.0**power for power in range(6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AdamW has its best learning rate at the upper edge at the largest batch size; Muon everywhere in the middle."""
    folder = tmp_path_factory.mktemp("sweep")
    optimizers = {"adamw": Truth(lr_at_1=8e-4, lr_power=0.5, lr_max=1.0), "muon": Truth(lr_at_1=2e-3, lr_power=0.0)}
    sweep(folder, optimizers, batch_sizes=SIZES, lrs=LRS, seeds=2, prune_factor=None, growth=1.3)
    return folder


@pytest.fixture(scope="module")
def believed(folder: Path) -> LearningRates:
    """The other batch sizes say where the best learning rate lies beside the edge, and the verdict believes them."""
    return learning_rates(folder, AnalysisConfig(resamples=100))


@pytest.fixture(scope="module")
def found(believed: LearningRates) -> LearningRates:
    """The same where the edge is doubted."""
    entry, *others = believed.entries
    optima = tuple(dataclasses.replace(best, believed=False) for best in entry.law.optima)
    doubted = dataclasses.replace(entry, law=dataclasses.replace(entry.law, optima=optima))
    return dataclasses.replace(believed, entries=(doubted, *others))


def test_without_any_best_learning_rate_the_next_command_says_what_is_missing(found: LearningRates) -> None:
    assert present.presentation(found).then[0].startswith("cbs throughput ")
    none = tuple(dataclasses.replace(entry, law=dataclasses.replace(entry.law, optima=())) for entry in found.entries)
    assert present.presentation(dataclasses.replace(found, entries=none)).then[0].startswith("cbs analyze ")


def test_everything_asked_is_printed(found: LearningRates) -> None:
    console = Console(file=io.StringIO(), width=160)
    present.show(found, console, wide=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "Best learning rate, validation_loss < 2.4 [95 % interval]",
        "adamw: power law, no saturation seen",
        "Best learning rate, between the points of the grid",
        "at an edge of the grid only a bound is known",
        "power law, no saturation seen",
        "no dependence seen",
        "learning rate times",
        "square-root rule",
        "one for all batch sizes",
        "not run at 2 batch sizes",
        "no critical batch size if some batch sizes are missing",
        "not run (every command in missing_trials.csv):",
        "adamw, linear rule: 4 trials at batch size 2, 512",
    ):
        assert words in text, words


def test_tables_json_and_figure_are_written(found: LearningRates, tmp_path: Path) -> None:
    files = present.write(found, tmp_path)
    names = {path.name for path in files}
    assert {"best_learning_rates.csv", "learning_rate_laws.tex", "protocols.csv", "learning_rates.json"} <= names
    assert {f"best_learning_rate.{suffix}" for suffix in ("png", "pdf", "csv")} <= names
    best = pd.read_csv(tmp_path / "best_learning_rates.csv").set_index(["optimizer", "batch_size"])
    entry = found.entries[0]
    optimum = entry.law.optima[1]
    assert best.loc[("adamw", 8), ["lr", "lr_low", "lr_high"]].tolist() == pytest.approx(
        [optimum.lr, *optimum.interval]
    )
    assert best["at_grid_edge"].sum() == 1
    protocols = pd.read_csv(tmp_path / "protocols.csv")
    assert len(protocols) == 10
    points = [each.answer.points for entry in found.entries for each in entry.protocols]
    assert protocols["batch_sizes_reached"].tolist() == [sum(point.reached for point in own) for own in points]
    assert protocols["batch_sizes_run"].tolist() == list(map(len, points))
    assert set(protocols["batch_sizes"]) == {len(SIZES)}
    assert protocols["critical_batch_size"].tolist() == pytest.approx(
        [
            math.nan if each.name == "linear rule" else each.answer.critical_batch_size
            for entry in found.entries
            for each in entry.protocols
        ],
        nan_ok=True,
    )
    factors = pd.read_csv(tmp_path / "learning_rate_factors.csv")
    assert set(factors["multiple"]) == {2, 4, 8}
    assert factors.loc[factors["optimizer"] == "adamw", "square_root"].all()
    missing = pd.read_csv(tmp_path / "missing_trials.csv")
    assert missing["batch_sizes"].tolist() == [2, 512] * 2
    assert set(missing["protocol"]) == {"linear rule"}
    assert json.loads((tmp_path / "learning_rates.json").read_text())["learning_rates"][1]["optimizer"] == "muon"


def test_the_command_prints_json_and_refuses_in_one_line(
    folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    asked = ("lr", folder, "-o", tmp_path / "out", "--json", "--figures", "none", "--resamples", 100)
    code, out, err = run(*asked, "--scale-from", 8)
    assert code == 0, err
    written = json.loads(out)
    assert {each["reference"] for entry in written["learning_rates"] for each in entry["protocols"]} == {None, 8}
    assert all(Path(path).is_file() for path in written["files"])
    code, _, err = run(*asked, "--scale-from", 7)
    assert code == 2
    assert err.startswith("cbs: batch size 7 of adamw has no best learning rate")
    assert len(err.strip().splitlines()) == 1


def test_commands_are_printed_once_and_only_where_there_are_few(found: LearningRates) -> None:
    (*others, linear) = found.entries[0].protocols
    one, two = (dataclasses.replace(cells, command=f"cbs sweep {index}") for index, cells in enumerate(linear.missing))
    with_commands = [
        *others,
        dataclasses.replace(linear, name="a", missing=(one, two)),
        dataclasses.replace(linear, name="b", missing=(one,)),
        dataclasses.replace(linear, name="c", missing=(dataclasses.replace(one, command="cbs sweep 2"), one, two)),
    ]
    entry = dataclasses.replace(found.entries[0], protocols=tuple(with_commands))
    lines = present.presentation(dataclasses.replace(found, entries=(entry,))).wide
    said = [line for line in lines if isinstance(line, str)]
    start = said.index("not run (every command in missing_trials.csv):")
    assert said[start + 1 :] == [
        "adamw, a: 4 trials at batch size 2, 512",
        "  cbs sweep 0",
        "  cbs sweep 1",
        "adamw, b: 2 trials at batch size 2",
        "adamw, c: 6 trials at batch size 2, 512",
    ]


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


def test_the_next_command_names_code_of_ones_own_and_times_no_other_program(found: LearningRates) -> None:
    def of(workload: str) -> LearningRates:
        entries = tuple(
            dataclasses.replace(
                entry,
                answer=dataclasses.replace(
                    entry.answer, group=dataclasses.replace(entry.answer.group, workload=workload)
                ),
            )
            for entry in found.entries
        )
        return dataclasses.replace(found, entries=entries)

    (own,) = present.presentation(of("my_model:Circles(hidden=3)")).then
    assert own.startswith("cbs throughput ")
    assert own.endswith(" --code my_model:Circles")
    assert present.presentation(of("command")).then[0].startswith("cbs recommend ")
