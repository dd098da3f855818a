"""``cbs import`` and then ``cbs analyze``, for every format, as a person types it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import IMPORTERS
from tests.analysis.read.importers.sources import CURVES, FLAGS, long_rows, trainer_state, write_csv

Cli = Callable[..., tuple[int, str, str]]
PATTERN = "{optimizer}-b{batch_size}-lr{lr}-s{seed}"

ROUGH = 0.01  # Of the critical batch size: events hold single precision, and studies are evaluated at powers of two


def table(top: Path) -> list[str]:
    return [str(write_csv(top / "runs.csv", long_rows()))]


def huggingface(top: Path) -> list[str]:
    for curve in CURVES:
        (top / curve.name).mkdir(parents=True)
        (top / curve.name / "trainer_state.json").write_text(trainer_state(curve.rows))
    return [str(top), "--pattern", PATTERN, "--column", "loss=eval_loss"]


def tensorboard(top: Path) -> list[str]:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for curve in CURVES:
        with SummaryWriter(str(top / curve.name)) as writer:
            for step, value in curve.rows:
                writer.add_scalar("loss", value, step)
    return [str(top), "--pattern", PATTERN]


def wandb(top: Path) -> list[str]:
    for curve in CURVES:
        write_csv(top / f"{curve.name}.csv", [{"_step": step, "loss": value} for step, value in curve.rows])
    runs = [{"run": curve.name, "batch_size": curve.batch_size, "lr": curve.lr} for curve in CURVES]
    return [str(top), "--runs", str(write_csv(top.parent / "about.csv", runs)), "--set", "optimizer=adamw"]


@pytest.mark.parametrize("write", [table, tensorboard, wandb, huggingface])
def test_imported_curves_give_their_critical_batch_size(run: Cli, tmp_path: Path, write: Any) -> None:
    arguments = write(tmp_path / "in")
    code, out, err = run("import", *arguments, "-o", tmp_path / "out", *FLAGS, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["format"] == write.__name__
    assert (told["runs"], told["batch_sizes"]) == (15, [2, 8, 32, 128, 512])
    assert told["statuses"] == {"REACHED": 15}
    code, out, err = run("analyze", tmp_path / "out", "--figures", "none", "--json", "--resamples", "100")
    assert code == 0, err
    (fit,) = json.loads(out)["fits"]
    # five sizes a factor of 4 apart: between them even an exact curve is known to some percent
    assert fit["critical_batch_size"] == pytest.approx(32.0, rel=0.1)
    assert fit["example_unit"] == "sequence"
    assert fit["simple_noise_scale"] is None
    assert fit["simple_noise_scale_note"] == "no gradient moments were recorded"


def test_a_person_is_told_what_was_imported(run: Cli, tmp_path: Path) -> None:
    code, out, _ = run("import", *table(tmp_path / "in"), "-o", tmp_path / "out", *FLAGS)
    assert code == 0
    assert out.startswith(f"imported 15 runs as table into {tmp_path / 'out'}: 15 REACHED\n")
    assert f"next: cbs analyze {tmp_path / 'out'}" in out


def test_all_missing_flags_are_named_at_once(run: Cli, tmp_path: Path) -> None:
    code, out, err = run("import")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for flag in ("SOURCE", "-o FOLDER", "--metric", "--direction", "--target", "--example-unit", "--metric-unit"):
        assert flag in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "batch_size"], "must be name=value"),
        (["--set", "lr=1", "--set", "lr=2"], "--set lr is given twice"),
        (["--column", "=x"], "must be name=value"),
        (["--format", "tabel"], "did you mean table"),
        (["--runs", "gone.csv"], "cannot read gone.csv"),
        (["--target", "low"], "--target"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(run: Cli, tmp_path: Path, arguments: list[str], words: str) -> None:
    code, out, err = run("import", *table(tmp_path / "in"), "-o", tmp_path / "out", *FLAGS, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("cbs: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "out").exists()


def test_help_has_an_example_and_the_formats_there_are(run: Cli) -> None:
    code, out, _ = run("import", "--help")
    assert code == 0
    assert "Example: cbs import" in out
    for name in IMPORTERS:
        assert name in out
