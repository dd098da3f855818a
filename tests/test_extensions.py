"""What a distribution adds from outside is found like what comes along, and what is taken away is missed by nothing."""

import re
import shutil
from pathlib import Path

import pytest

import cli
from cbs.errors import ConfigError
from cbs.registry import extensions
from cbs.registry.extensions import Folder
from tests import fresh
from tests.factories import Truth, sweep

ROOT = Path(__file__).resolve().parents[1]
TINY = {
    "__init__.py": "",
    "command.py": """\
def command() -> None:
    \"\"\"Say hello.

    Example: cbs tiny
    \"\"\"
    print("hello from afar")
""",
    "optimizers.py": """\
import torch

from cbs.optimizers.base import optimizer, trainable


@optimizer("tiny_descent", lr_grid=(0.1, 0.2), family="sgd", geometry="l2", paper="nobody")
def tiny(model, lr):
    \"\"\"Plain descent.\"\"\"
    return torch.optim.SGD(trainable(model), lr=lr)
""",
    "importers.py": """\
from pathlib import Path

from analysis.read.importers.base import IMPORTERS, Importer, ImportedRun


@IMPORTERS.register("tiny_log")
class TinyLog(Importer):
    \"\"\"Lines of a step and a loss.\"\"\"

    expected = "a .tiny file"
    marks = ("*.tiny", "tiny logs")

    def read(self, source, settings, notes):
        for path in self.files(source):
            rows = [[float(part) for part in line.split()] for line in path.read_text().splitlines()]
            facts = {"batch_size": 8, "lr": 0.1, "seed": 0, "optimizer": "adamw"}
            axis, values = map(list, zip(*rows))
            yield ImportedRun(name=path.stem, place=str(path), axis=axis, values=values, facts=facts, files=(path,))
""",
}
ASK = """\
import contextlib, json, sys
sys.path.insert(0, {home!r})
sys.path.insert(0, {site!r})
import cli
for words in {lines!r}:
    sys.argv = ["cbs", *words]
    cli.application.cache_clear()
    with contextlib.suppress(SystemExit):
        cli.main()
"""


def installed(site: Path, package: str = "far_away", value: str = "far_away", name: str = "tiny") -> None:
    """As pip leaves it: the package, and beside it what its distribution says."""
    for file, text in TINY.items():
        (site / package).mkdir(parents=True, exist_ok=True)
        (site / package / file).write_text(text)
    about = site / "tiny_thing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{extensions.GROUP}]\n{name} = {value}\n")


def ask(tmp_path: Path, *lines: list[str], home: Path = ROOT, site: Path | None = None) -> fresh.Finished:
    """Run commands, one after the other, in a fresh process that has ``site`` beside the tree at ``home``."""
    return fresh.python(ASK.format(home=str(home), site=str(site or home), lines=[*lines]), tmp_path)


def test_a_distribution_adds_a_command_an_optimizer_and_an_importer(tmp_path: Path) -> None:
    installed(tmp_path / "site")
    (tmp_path / "run.tiny").write_text("".join(f"{step} {4 - 0.01 * step}\n" for step in range(1, 200, 5)))
    told = ["--metric", "val_loss", "--direction", "below", "--target", "2.5", "--metric-unit", "nats"]
    imported = ["import", "run.tiny", "--format", "tiny_log", "-o", "made", "--example-unit", "tree", *told]
    lines = (["--help"], ["tiny"], ["optimizers", "tiny_descent"], ["import", "--help"], imported)
    answer = ask(tmp_path, *lines, site=tmp_path / "site")
    assert answer.stderr == ""
    assert "  tiny    Say hello." in answer.stdout.split("Extensions:")[1].split("\n\n")[0]
    assert "hello from afar" in answer.stdout
    assert "Plain descent" in answer.stdout
    assert "tiny_log" in answer.stdout.split("  --format ")[1].split("  --metric ")[0]
    assert len(list((tmp_path / "made" / "trials").iterdir())) == 1
    assert "tiny" not in ask(tmp_path, ["--help"]).stdout


def test_an_extension_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    installed(tmp_path / "site", value="far_away.gone")
    answer = ask(tmp_path, ["analyze", "."], site=tmp_path / "site")
    assert answer.stdout == ""
    assert answer.stderr == (
        "cbs: extension 'tiny' should be the package far_away.gone, which does not exist; reinstall or uninstall "
        "tiny-thing\n"
    )


def test_a_command_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    installed(tmp_path / "site")
    (tmp_path / "site" / "far_away" / "command.py").write_text("import nothing_of_this_name\n")
    answer = ask(tmp_path, ["tiny"], site=tmp_path / "site")
    assert answer.stderr.startswith("cbs: cannot import far_away.command: ModuleNotFoundError: ")
    assert answer.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, with what is compiled of it, but for files that are just being compiled."""
    copied = tmp_path_factory.mktemp("tree")
    for part in ("cbs", "sweeps", "analysis", extensions.BUILT_IN):
        shutil.copytree(ROOT / part, copied / part, ignore=shutil.ignore_patterns("*.pyc.*", "tests"))
    shutil.copy(ROOT / "cli.py", copied)
    return copied


@pytest.mark.parametrize("name", ["", *(folder.name for folder in extensions.within(extensions.BUILT_IN))])
def test_without_an_extension_everything_else_works(name: str, tree: Path, tmp_path: Path) -> None:
    """Without each alone all commands are put together; without the whole folder the main ones run and draw, too."""
    extension = tree / extensions.BUILT_IN / name
    # without a name every optimizer makes a step, which says something where optimizers are gone
    listed = [] if any(extension.glob("optimizers*")) or not name else ["merit"]
    extension.rename(tmp_path / "gone")
    sweep(tmp_path / "results", {"adamw": Truth()}, batch_sizes=(8, 64, 512), lrs=(8e-3,))
    analyze = ["analyze", "results", "--resamples", "100"]
    lines = [["--help"], ["optimizers", *listed], ["import", "--help"]]
    if name:
        lines.append([*analyze, "--json", "--figures", "none"])
    else:
        lines += [["sweep", "--optim", "merit", "--recipe", "quick", "--dry-run"], analyze]
    answer = ask(tmp_path, *lines, home=tree)
    (tmp_path / "gone").rename(extension)
    assert not re.search(r"^(cbs: |Traceback)", answer.stderr, re.MULTILINE), answer.stderr
    assert "Measure:" in answer.stdout
    assert re.search(r"^ *merit\b", answer.stdout, re.MULTILINE)
    assert "B_crit" in answer.stdout
    if name:
        return
    assert "to run" in answer.stdout
    assert (tmp_path / "results" / "analysis" / "summary.csv").exists()
    assert (tmp_path / "results" / "analysis" / "figures" / "steps.pdf").exists()


def test_two_commands_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder("analyze", "analysis.questions.fit", ROOT / "analysis" / "questions" / "fit")
    monkeypatch.setattr("cbs.registry.commands.extensions", lambda: (folder,))
    cli.application.cache_clear()
    with pytest.raises(ConfigError, match="two commands are called 'analyze'"):
        cli.application("analyze")
    cli.application.cache_clear()
