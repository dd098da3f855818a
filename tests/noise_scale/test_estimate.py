"""What an estimate says."""

import json
from typing import Any

import pytest

from cbs.noise_scale.averages import Estimate, three_digits


def estimate(**changes: Any) -> Estimate:
    given = {
        "value": 41.234,
        "low": 36.0,
        "high": 48.1,
        "confidence": 0.95,
        "signal": 0.5,
        "noise": 20.6,
        "steps": 100,
        "examples": 800,
    }
    return Estimate(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "41.2 [36.0, 48.1] examples"),
        ({"high": None}, "above 36.0 examples (best guess 41.2), with no upper end at this batch size"),
        ({"low": None}, "41.2 [0, 48.1] examples"),
        ({"low": None, "high": None}, "41.2 examples"),
        (
            {"value": None, "low": 120.0, "high": None, "note": "the mean signal is not positive (-0.0012)"},
            "above 120 examples, with no upper end at this batch size: the mean signal is not positive (-0.0012)",
        ),
        ({"value": None, "low": None, "high": None, "note": "no step yet"}, "undefined: no step yet"),
    ],
)
def test_in_words(changes: dict[str, Any], text: str) -> None:
    assert str(estimate(**changes)) == text


def test_json_is_strict() -> None:
    undefined = estimate(value=None, high=None, signal=None, noise=None, steps=0, examples=0, note="no step yet")
    assert json.loads(json.dumps(undefined.to_json(), allow_nan=False)) == {
        "value": None,
        "low": 36.0,
        "high": None,
        "confidence": 0.95,
        "signal": None,
        "noise": None,
        "steps": 0,
        "examples": 0,
        "note": "no step yet",
        "unit": "examples",
    }
    assert undefined.interval == (36.0, None)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (0.01234, "0.0123"), (9.876, "9.88"), (123.4, "123"), (1234567.0, "1,234,567")]
)
def test_three_digits(value: float, text: str) -> None:
    assert three_digits(value) == text
