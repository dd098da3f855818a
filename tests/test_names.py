"""One word, one thing: no class name stands for two."""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
