"""What is installed is what is in the tree, one word is one thing there, and the examples in docstrings run."""

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from setuptools import find_packages

import cbs
from analysis import Analysis, analyze, fit
from cbs.diagnostics import Diagnostic
from cbs.noise_scale import Estimate, NoiseScaleMeter, Probe
from cbs.optimizers import LARS, MERIT, OptimizerSpec
from cbs.schedules.batch_size import ClosedLoop, OpenLoop
from cbs.schedules.learning_rate import build_schedule
from cbs.training.averaging import WeightAverage
from cbs.workloads import TrainingStream, Workload

TOPS = ("cbs", "sweeps", "analysis", "extensions")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_folder_of_modules_is_a_package_and_is_installed():
    folders = {module.parent.relative_to(ROOT).parts for top in TOPS for module in (ROOT / top).rglob("*.py")}
    find = PROJECT["tool"]["setuptools"]["packages"]["find"]
    assert find["namespaces"] is False  # tests of extensions are no packages, and are not installed
    installed = find_packages(str(ROOT), include=find["include"])
    assert set(installed) == {".".join(parts) for parts in folders if "tests" not in parts}


def test_files_beside_modules_are_installed_with_them():
    packages = {module.parent for top in TOPS for module in (ROOT / top).rglob("__init__.py")}
    files = [file for package in packages for file in package.iterdir() if file.is_file() and file.suffix != ".py"]
    assert {file.suffix for file in files} >= {".css", ".html", ".mplstyle"}
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    assert [file for file in files if not any(map(file.match, patterns))] == []


def test_the_version_is_the_same_everywhere():
    assert cbs.__version__ == PROJECT["project"]["version"]
    assert f"## {cbs.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {cbs.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_dependency_is_pinned_in_the_constraints():
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()}
    extras = [name for group in PROJECT["project"]["optional-dependencies"].values() for name in group]
    for requirement in [*PROJECT["project"]["dependencies"], *extras]:
        name = re.split(r"[\[<>=]", requirement)[0].lower().replace("_", "-")
        assert name in pinned, requirement


def test_no_exported_name_is_that_of_a_module_beside_it():
    # Importing the module would put it in the place of what is exported.
    for init in (ROOT / "cbs").rglob("__init__.py"):
        package = importlib.import_module(".".join(init.parent.relative_to(ROOT).parts))
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(getattr(package, "__all__", ())), package.__name__


@pytest.mark.parametrize("name", ["sweeps", "analysis", "extensions"])
def test_a_rival_package_in_front_is_named(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise RuntimeError('a rival must not be imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['cbs', 'analyze']; import cbs, cli; cli.main()"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert answer.returncode == 2
    assert answer.stderr.startswith("cbs: ")
    assert answer.stderr.count("\n") == 1
    assert str(tmp_path / name) in answer.stderr


def test_the_core_imports_alone_and_stays_light_and_the_meter_needs_torch_and_numpy_alone():
    heavy = ("ray", "pandas", "matplotlib", "sweeps", "analysis", "scipy", "typer", "transformers", "lightning")
    code = (
        "import sys; from cbs.noise_scale import NoiseScaleMeter; "
        f"print([name for name in {(*heavy, 'pyarrow')} if name in sys.modules]); "
        "import cbs; from cbs.noise_scale.sources import SOURCES; from cbs.optimizers import OPTIMIZERS; "
        "cbs.run_trial, SOURCES.names(), OPTIMIZERS.names(); "
        f"print([name for name in {heavy[:5]} if name in sys.modules]); "
        "import sweeps.launching.launch; from sweeps.launching.policies import POLICIES; POLICIES.make('precision'); "
        "print([name for name in ['scipy', 'pandas'] if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.split() == ["[]", "[]", "[]"]  # the last: seconds of every start of a sweep


def test_no_class_name_is_defined_in_two_modules() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    tops = (ROOT / top for top in ("cbs", "sweeps", "analysis", "extensions"))
    for path in [
        ROOT / "cli.py",
        *(path for top in tops for path in top.rglob("*.py") if "tests" not in path.relative_to(ROOT).parts),
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(path.relative_to(ROOT).as_posix())
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}
    assert len(homes) > 100  # the search finds classes


def test_every_public_name_is_there() -> None:
    for path in (path for top in ("cbs", "sweeps", "analysis", "extensions") for path in (ROOT / top).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                module = importlib.import_module(name)
                assert [public for public in module.__all__ if not hasattr(module, public)] == [], name


PLACES = [ROOT / "cbs", ROOT / "sweeps", ROOT / "analysis", ROOT / "extensions"]
FINDER = doctest.DocTestFinder(exclude_empty=True)


def modules() -> list[str]:
    files = [file for place in PLACES for file in sorted(place.rglob("*.py")) if "tests" not in file.parts]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text(encoding="utf-8") for file in files}
    return [name.removesuffix(".__init__") for name, text in names.items() if ">>> " in text]


@pytest.mark.parametrize("name", modules())
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    said: list[str] = []
    with torch.random.fork_rng():
        for examples in FINDER.find(module):
            runner.run(examples, out=said.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize(
    "entry",
    [
        *(getattr(cbs, name) for name in cbs.__all__),
        *(Analysis, fit, NoiseScaleMeter, Probe, Estimate, Diagnostic, Workload, TrainingStream, OptimizerSpec),
        *(analyze, MERIT, LARS, WeightAverage, OpenLoop, ClosedLoop, build_schedule),
    ],
    ids=lambda entry: entry.__name__,
)
def test_who_is_used_from_outside_has_an_example(entry: Any) -> None:
    assert doctest.DocTestParser().get_examples(entry.__doc__)
