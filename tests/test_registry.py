"""The registry: discovery of siblings, and errors that help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cbs.errors import CbsError, UnknownNameError
from cbs.registry import Registry


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[type]:
    """A registry whose package has one module per entry."""
    package = tmp_path / "throwaway_shapes"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from cbs.registry import Registry\nSHAPES = Registry('shape', 'throwaway_shapes')\n"
    )
    for name in ("circle", "square"):
        (package / f"{name}.py").write_text(
            f"from throwaway_shapes import SHAPES\n\n@SHAPES.register('{name}')\nclass Shape:\n    name = '{name}'\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("throwaway_shapes").SHAPES
    for module in [module for module in sys.modules if module.startswith("throwaway_shapes")]:
        del sys.modules[module]


def test_one_file_with_one_decorator_is_enough(shapes: Registry[type]) -> None:
    assert "throwaway_shapes.circle" not in sys.modules
    assert shapes["circle"].name == "circle"
    assert shapes.names() == ["circle", "square"] == list(shapes)
    assert "square" in shapes
    assert "triangle" not in shapes


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("circel", "did you mean circle?"),
        ("SQUARE", "did you mean square?"),
        ("qqqqqq", "known names are circle, square"),
    ],
)
def test_unknown_names_get_the_nearest_known(shapes: Registry[type], name: str, words: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        shapes[name]
    message = str(caught.value)
    assert words in message
    assert f"unknown shape {name!r}" in message
    assert "circle, square" in message
    assert "\n" not in message
    assert ("did you mean" in message) == (name != "qqqqqq")
    assert isinstance(caught.value, CbsError)


def test_a_name_is_taken_once(shapes: Registry[type]) -> None:
    assert shapes["circle"]
    with pytest.raises(ValueError, match="'circle' is registered twice"):
        shapes.register("circle")(int)
    assert shapes["circle"] is not int


def test_register_returns_what_it_decorates(shapes: Registry[type]) -> None:
    assert shapes.register("line")(int) is int
    assert shapes.names() == ["circle", "line", "square"]
