"""Choices as text: what a person types, what ``str`` writes, and what variants of one name are called."""

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, labels, parse_choice, parse_value
from cbs.registry.values import finite, is_number, is_whole, number, parse_batch_sizes, parse_seeds, whole

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | st.sampled_from(["none", "True", "1e5", ".9", "a,b", "f(x)", "it's", '"', "[1]", " x ", "a=b", "07"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NAMES = st.from_regex(r"[a-z_]\w{0,8}([.:][a-z_]\w{0,8}){0,2}", fullmatch=True)
OPTIONS = st.dictionaries(st.from_regex(r"[a-z_][a-z_0-9]{0,8}", fullmatch=True), VALUES, max_size=4)


def same(one: Any, other: Any) -> bool:
    """Equal in type, too: 1 is neither 1.0 nor true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(NAMES, OPTIONS)
def test_what_str_writes_is_read_back(name: str, options: dict[str, Any]) -> None:
    choice = Choice(name=name, options=options)
    read = parse_choice(str(choice))
    assert read.name == name
    assert same(read.options, choice.options)
    assert "\n" not in str(choice)


@given(st.text())
def test_any_text_is_a_choice_or_one_line(text: str) -> None:
    for read in (parse_choice, parse_value):
        with contextlib.suppress(ConfigError):
            read(text)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("muon", "muon", {}),
        ("muon()", "muon", {}),
        (" muon ( nesterov = false ) ", "muon", {"nesterov": False}),
        ("adamw(betas=[0.9,0.95],weight_decay=0.1)", "adamw", {"betas": [0.9, 0.95], "weight_decay": 0.1}),
        ("adamw(betas=(.9, .95),)", "adamw", {"betas": [0.9, 0.95]}),
        ("my_module:MyOptimizer(option=3)", "my_module:MyOptimizer", {"option": 3}),
        ("torch.adam(eps=1e-6, amsgrad=True)", "torch.adam", {"eps": 1e-6, "amsgrad": True}),
        ("a(x=None, y='f(1, 2)', z=\"=,\")", "a", {"x": None, "y": "f(1, 2)", "z": "=,"}),
        ("a(x={k: [1, b], 'l m': {}})", "a", {"x": {"k": [1, "b"], "l m": {}}}),
        ("a(x=bare/word-1.txt, y=1e, z=07)", "a", {"x": "bare/word-1.txt", "y": "1e", "z": "07"}),
    ],
)
def test_forms_a_person_types(text: str, name: str, options: dict[str, Any]) -> None:
    read = parse_choice(text)
    assert read.name == name
    assert same(read.options, options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("(a=1)", "empty"),
        ("muon(a=1", "closing parenthesis"),
        ("muon(a=1)b", "closing parenthesis"),
        ("muon(nesterov)", "'nesterov' in .* is not option=value"),
        ("muon(nesterov=)", "is not option=value"),
        ("muon(1=2)", "is not option=value"),
        ("muon(a=1, a=2)", "a twice"),
        ("muon(a=1,,b=2)", "there is nothing before"),
        ("muon(a=[1)", "']' is missing"),
        ("muon(a=1])", "has no opening bracket"),
        ("muon(a='x)", "quote is not closed"),
        ("muon(a={1, 2})", "not a dictionary"),
        ("muon(a=1e999)", "JSON"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_choice(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "called"),
    [
        (["muon", "adamw"], ["muon", "adamw"]),
        (["muon(nesterov=false)", "adamw"], ["muon", "adamw"]),
        (["muon", "muon(nesterov=false)"], ["muon", "muon(nesterov=false)"]),
        (["a(x=1, y=2)", "a(x=1, y=3)", "b(y=2)"], ["a(y=2)", "a(y=3)", "b"]),
        (["a(x=1)", "a(y=1)"], ["a(x=1)", "a(y=1)"]),
        (["a(x=1)", "a(x=true)", "a(x=1.0)", "a(x='1')"], ["a(x=1)", "a(x=true)", "a(x=1.0)", 'a(x="1")']),
        (["a(x=none)", "a"], ["a(x=none)", "a"]),
    ],
)
def test_a_label_has_the_options_that_differ_and_no_others(texts: list[str], called: list[str]) -> None:
    assert labels(list(map(parse_choice, texts))) == called


@given(st.lists(OPTIONS, min_size=1, max_size=5))
def test_no_two_variants_have_one_label(options: list[dict[str, Any]]) -> None:
    choices = list({str(choice): choice for choice in (Choice(name="a", options=part) for part in options)}.values())
    assert len(set(labels(choices))) == len(choices)


def test_a_choice_covers_those_with_further_options() -> None:
    muon, variant = parse_choice("muon"), parse_choice("muon(betas=[1, 2], nesterov=false)")
    assert muon.covers(variant)
    assert parse_choice("muon(betas=[1, 2])").covers(variant)
    assert not parse_choice("muon(betas=[1, 3])").covers(variant)
    assert not variant.covers(muon)
    assert not parse_choice("adamw").covers(variant)


@pytest.mark.parametrize(("value", "least", "taken"), [(1, 1, True), (0, 1, False), (0, 0, True), (5, 5, True)])
def test_whole_numbers_start_at_the_least(value: int, least: int, taken: bool) -> None:
    assert is_whole(value, least) is taken
    if taken:
        assert whole("n", value, least=least) == value
    else:
        with pytest.raises(ConfigError, match=f"^n must be a whole number of at least {least}, got {value}$"):
            whole("n", value, least=least)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_refused_with_its_value(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"at least 1, the first, got {value!r}$"):
        whole("n", value, what="the first")


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, math.nan, math.inf, True, "0.5", None])
def test_bounds_of_a_number_are_outside(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^x must be a number above 0 and below 1, got "):
        number("x", value, below=1.0)
    assert number("x", 0.5, below=1.0) == 0.5


def test_a_number_without_an_upper_bound_says_so() -> None:
    assert type(number("x", 3)) is float
    with pytest.raises(ConfigError, match=r"^x must be a number above 2, got 2$"):
        number("x", 2, above=2.0)


def test_truth_is_no_number_and_numpys_numbers_are_stored_as_floats() -> None:
    assert not is_number(True)
    assert is_number(1)
    assert type(finite("x", np.float32(0.5))) is float
    for value in (math.nan, math.inf, False, "1"):
        with pytest.raises(ConfigError, match=r"^x must be a finite number, got "):
            finite("x", value)


def test_batch_size_ranges():
    assert parse_batch_sizes("4..64") == (4, 8, 16, 32, 64)
    assert parse_batch_sizes("3..12") == (3, 6, 12)
    with pytest.raises(ConfigError, match=r"does not meet 13; use 3\.\.12 or 3\.\.24"):
        parse_batch_sizes("3..13")
    assert parse_batch_sizes("5, 7") == (5, 7)
    with pytest.raises(ConfigError, match=r"separated by commas or a range such as 4\.\.512, got '4-64'"):
        parse_batch_sizes("4-64")


def test_seeds_are_a_count_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("4,7") == (4, 7)
    assert parse_seeds("4,") == (4,)
