"""JSON of what a question found: shown fields alone, and types that JSON knows."""

import json
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from analysis.formatting import plain, shown
from cbs.trial.target import Target


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    interval: tuple[float | None, float | None] = (None, 2.0)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    colour: Colour
    target: Target
    values: np.ndarray
    by_name: dict[str, Inner]
    hidden: np.ndarray = field(repr=False)


def test_shown_fields_become_lists_mappings_and_numbers() -> None:
    target = Target(metric="loss", value=2.0)
    found = shown(Outer(Inner(), Colour.RED, target, np.arange(2.0), {"a": Inner((1.0, 2.0))}, np.empty(3)))
    assert found == {
        "inner": {"interval": [None, 2.0]},
        "colour": "red",
        "target": target.to_json(),
        "values": [0.0, 1.0],
        "by_name": {"a": {"interval": [1.0, 2.0]}},
    }
    assert json.loads(json.dumps(found)) == found
    assert type(found["colour"]) is str


def test_a_number_of_numpy_is_one_of_python() -> None:
    assert type(plain(np.float64(1.5))) is float
    assert type(plain(np.bool_(True))) is bool
    assert plain(None) is None
