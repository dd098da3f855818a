"""``cbs import`` and then ``cbs analyze``, as a person types it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analysis.read.importers.sources import FLAGS, long_rows, write_csv

Cli = Callable[..., tuple[int, str, str]]
PATTERN = "{optimizer}-b{batch_size}-lr{lr}-s{seed}"


def table(top: Path) -> list[str]:
    return [str(write_csv(top / "runs.csv", long_rows()))]


def test_imported_curves_give_their_critical_batch_size(run: Cli, tmp_path: Path) -> None:
    code, out, err = run("import", *table(tmp_path / "in"), "-o", tmp_path / "out", *FLAGS, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["format"] == "table"
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
