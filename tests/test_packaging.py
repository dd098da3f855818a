"""What is installed is what is in the tree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import cbs

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_of_the_tree_is_listed():
    found = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for top in ("cbs", "sweeps", "analysis")
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def test_the_version_is_the_same_everywhere():
    assert cbs.__version__ == PROJECT["project"]["version"]
    assert f"## {cbs.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_is_pinned_in_the_constraints():
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()}
    extras = [name for group in PROJECT["project"]["optional-dependencies"].values() for name in group]
    for requirement in [*PROJECT["project"]["dependencies"], *extras]:
        name = re.split(r"[\[<>=]", requirement)[0].lower().replace("_", "-")
        assert name in pinned, requirement
