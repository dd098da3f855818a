"""The registry: discovery of siblings, and errors that help."""

import sys
from pathlib import Path

import pytest

from cbs.errors import CbsError, ConfigError, UnknownNameError
from cbs.registry import Registry, listed
from tests.test_own_entries import REGISTRIES


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
            f'from throwaway_shapes import SHAPES\n\n@SHAPES.register("{name}")\nclass Shape:\n    name = "{name}"\n'
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
    with pytest.raises(ConfigError, match="shape 'circle', registered in builtins, has a name that is already taken"):
        shapes.register("circle")(int)
    assert shapes["circle"] is not int


class Polygons:
    """A fallback that makes entries on demand, and knows one it cannot make."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.listed = 0

    def names(self) -> list[str]:
        self.listed += 1
        return ["square", "hexagon"]

    def get(self, name: str) -> type | None:
        self.asked.append(name)
        if name == "digon":
            raise ConfigError("a digon is flat")
        return type(name, (), {"name": name}) if name in ("square", "hexagon") else None

    def describe(self) -> str:
        return "every polygon"


@pytest.fixture
def polygons(shapes: Registry[type]) -> Polygons:
    shapes.fallback = Polygons()
    return shapes.fallback


def test_a_fallback_serves_what_is_not_registered(shapes: Registry[type], polygons: Polygons) -> None:
    assert shapes["square"].__module__ == "throwaway_shapes.square"
    assert "square" in shapes
    assert not polygons.asked
    assert shapes["hexagon"].name == "hexagon"
    assert "hexagon" in shapes
    assert "triangle" not in shapes
    assert 3 not in shapes
    assert shapes.names() == ["circle", "square"] == list(shapes)
    assert not polygons.listed
    assert shapes.more_names() == ["hexagon"]


def test_names_of_a_fallback_are_suggested(shapes: Registry[type], polygons: Polygons) -> None:
    with pytest.raises(UnknownNameError) as caught:
        shapes["hexagn"]
    assert str(caught.value) == (
        "unknown shape 'hexagn': did you mean hexagon? known names are circle, square, every polygon"
    )


def test_a_fallback_says_why_it_does_not_serve_a_name(shapes: Registry[type], polygons: Polygons) -> None:
    with pytest.raises(ConfigError, match="a digon is flat"):
        shapes["digon"]
    assert "digon" not in shapes


def test_names_are_listed_from_the_sources_without_an_import(shapes: Registry[type], tmp_path: Path) -> None:
    assert listed("throwaway_shapes") == "circle, square"
    assert "throwaway_shapes.circle" not in sys.modules
    (tmp_path / "throwaway_shapes" / "hexagon.py").write_text(
        "from throwaway_shapes import SHAPES\n\nSHAPES.register(\n    'hexagon')(int)\n".replace("'", '"')
    )
    listed.cache_clear()
    assert listed("throwaway_shapes") == "circle, hexagon, square" == ", ".join(shapes)


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=lambda registry: registry.package)
def test_what_a_help_text_lists_is_what_the_registry_holds(registry: Registry[object]) -> None:
    assert listed(registry.package, registry.folders) == ", ".join(registry)
