"""What is installed is what is in the tree."""

import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

from setuptools import find_packages

import cbs

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
