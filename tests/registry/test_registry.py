"""The registry: discovery of siblings, errors that help, and files of one's own that hold something else."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cbs.errors import CbsError, ConfigError, UnknownNameError
from cbs.registry import Registry, listed
from tests.cases import of_extensions
from tests.factories import Truth, sweep


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


ROOT = Path(__file__).resolve().parents[2]
HOMES = {
    name: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("cbs", "sweeps", "analysis", "extensions")
    for path in (ROOT / package).rglob("*.py")
    for name in re.findall(r"^([A-Z_]+): Registry\[", path.read_text(), re.MULTILINE)
}
REGISTRIES: dict[str, Registry[Any]] = {
    name: getattr(importlib.import_module(home), name) for name, home in HOMES.items()
}
MADE = [name for name, registry in REGISTRIES.items() if registry._makes is not None]

WRONG = {
    "nothing": "mine = None",
    "object": "mine = object()",
    "class": "class mine:\n    def __init__(self, *args, **options): ...",
    "function": "def mine(*args, **options): ...",
    "text": "def mine(*args, **options):\n    return 'mine'",
    "words": "mine = 'mine'",
}

Add = Callable[[Registry[Any], str], None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Writes a module ``mine`` into the package of a registry, whose lookups find it from then on."""

    def write(registry: Registry[Any], source: str) -> None:
        list(registry)
        (tmp_path / "mine.py").write_text(source)
        package = importlib.import_module(registry.package)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        monkeypatch.setattr(package, "mine", None, raising=False)
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        monkeypatch.setattr(registry, "_discovered", False)

    yield write
    for name in [name for name in sys.modules if name.endswith(".mine")]:
        del sys.modules[name]


def registered(name: str, source: str) -> str:
    """The text of a module that registers its ``mine``."""
    return f"from {HOMES[name]} import {name}\n\n{source}\n\n{name}.register('mine')(mine)\n"


def test_all_registries_say_what_they_hold() -> None:
    assert sum(not home.startswith("extensions.") for home in HOMES.values()) == 16
    for registry in REGISTRIES.values():
        said = (registry._derived_from, registry._instance_of, registry._makes)
        assert sum(each is not None for each in said) == 1, registry.kind


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", REGISTRIES)
def test_what_it_cannot_hold_is_refused_when_registered_or_else_when_made(name: str, wrong: str, add: Add) -> None:
    registry = REGISTRIES[name]
    add(registry, registered(name, WRONG[wrong]))
    with pytest.raises(ConfigError) as caught:
        registry.make("mine", SimpleNamespace())
    assert re.match(rf"{registry.kind} 'mine'(, registered in \S+,)? (must be a|makes a) [^\n]+$", str(caught.value))
    early = name not in MADE or wrong in ("nothing", "object", "words")
    assert ("registered in" in str(caught.value)) == early


@pytest.mark.parametrize(
    "name", sorted(set(REGISTRIES) - set(MADE) - {"ALONG_TRAINING", "FIGURES", "FORMS", "OPTIMIZERS"})
)
def test_a_class_that_lacks_a_method_of_its_base_is_refused(name: str, add: Add) -> None:
    base = REGISTRIES[name]._derived_from
    source = f"from {base.__module__} import {base.__name__}\n\nclass mine({base.__name__}): ..."
    add(REGISTRIES[name], registered(name, source))
    with pytest.raises(ConfigError, match=r"is a class without (__call__|expected|__init__, files|write)\b"):
        list(REGISTRIES[name])


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_name_that_is_taken_is_refused(name: str, add: Add) -> None:
    registry = REGISTRIES[name]
    taken = registry.names()[0]
    add(registry, registered(name, f"mine = {name}[{taken!r}]").replace("register('mine')", f"register({taken!r})"))
    with pytest.raises(ConfigError, match=f"{taken!r}, registered in .* has a name that is already taken"):
        list(registry)


COMMANDS = {
    "RECIPES": "sweep --recipe mine --dry-run",
    "TRACKERS": "sweep --log mine --dry-run",
    "IMPORTERS": "import . -o o --format mine --metric a --direction below --target 1 --example-unit b --metric-unit c",
    "FIGURES": "analyze RESULTS -o figures",
    "OPTIMIZERS": "optimizers mine",
    "SCHEDULES": "sweep --set schedule.name=mine --dry-run",
    "WORKLOADS": "sweep --workload mine --dry-run",
    "AVERAGES": "sweep --set averaging=mine --dry-run",
    "BATCH_SCHEDULES": "sweep --schedule mine --dry-run",
    "DIAGNOSTICS": "sweep --set diagnostics=mine --dry-run",
    "POLICIES": "sweep --set policy=mine --dry-run",
}
"""A command that needs the entry, or all entries, of a registry."""
for those in of_extensions("ASKING"):
    COMMANDS |= those


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_it_in_one_line(
    name: str, run: Callable[..., tuple[int, str, str]], add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "RESULTS" in COMMANDS[name]:
        sweep(tmp_path / "RESULTS", {"adamw": Truth()}, seeds=2)
    add(REGISTRIES[name], registered(name, WRONG["function"]))
    code, out, err = run(*COMMANDS[name].split())
    assert (code, out) == (2, ""), err
    assert re.fullmatch(rf"cbs: {REGISTRIES[name].kind} 'mine'(, registered in \S+,)? (must be|makes) a [^\n]+\n", err)


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=lambda registry: registry.package)
def test_what_a_help_text_lists_is_what_the_registry_holds(registry: Registry[object]) -> None:
    assert listed(registry.package, registry.folders) == ", ".join(registry)
