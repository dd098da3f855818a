"""Choices as text: what a person types, what ``str`` writes, and what variants of one name are called."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, labels, parse_choice, parse_value, read_choice, value_text

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


@given(VALUES)
def test_a_value_alone_too_and_as_json(value: Any) -> None:
    assert same(parse_value(value_text(value)), value)
    assert same(parse_value(json.dumps(value)), value)


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


def test_a_name_that_other_tools_gave_stands_as_it_is() -> None:
    assert read_choice("AdamW (fused)") == Choice(name="AdamW (fused)")
    assert read_choice("muon(nesterov=false)").options == {"nesterov": False}


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
