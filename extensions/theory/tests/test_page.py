"""What the page about the quadratic shows is what its commands do."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kinds import kinds

ROOT = Path(__file__).resolve().parents[3]
QUADRATIC = (ROOT / "docs" / "noisy-quadratic.md").read_text()
SHOWN = re.findall(r"```sh\ncbs (theory quadratic [^\n]*)\n```\n\n!\[[^]]+\]\((figures/\w+\.png)\)", QUADRATIC)


def test_every_figure_of_the_quadratic_stands_below_its_command() -> None:
    assert [path for _, path in SHOWN] == re.findall(r"\((figures/\S+)\)", QUADRATIC)
    assert len(SHOWN) == 6
    for command, path in SHOWN:
        assert command.endswith(f"--figure docs/{path}")


COMMANDS = [command for command, _ in SHOWN] + re.findall(r"`cbs (theory quadratic [^`]+)`", QUADRATIC)


@pytest.mark.parametrize("command", kinds(COMMANDS[:1], COMMANDS[1:]))
def test_a_command_of_the_quadratic_draws_its_figure(
    command: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """On a quadratic of ten coordinates and two batch sizes."""
    figure = tmp_path / "figure.png"
    given = [str(figure) if part.startswith("docs/") else part for part in command.split()]
    code, out, err = run(*given, "--dimension", 10, "--batch-sizes", "4,64", "--target", 0.02, "--resamples", 100)
    assert (code, err) == (0, "predicting the curves (seconds to minutes)\n")
    assert "Critical batch size" in out
    assert figure.exists() == ("--figure" in given)


@pytest.mark.slow
def test_numbers_of_the_quadratic_are_those_of_the_command(run: Callable[..., tuple[int, str, str]]) -> None:
    header, *rows = (
        line.strip("| ").split(" | ") for line in QUADRATIC.splitlines() if line.startswith(("| batch", "| 1,024"))
    )
    asked = [part for name in ("sgd", "ema") for part in ("--optim", name)]
    code, out, err = run("theory", "quadratic", *asked, "--batch-sizes", "1024,2048", "--json", "--resamples", 100)
    assert code == 0, err
    measured = {row["optimizer"]: row["steps"] for row in json.loads(out)["rows"] if row["batch_size"] == 1024}
    (row,) = rows
    assert {name: f"{steps:,}" for name, steps in measured.items()} == {
        name: row[header.index(name)] for name in measured
    }
