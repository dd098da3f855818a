"""What ``cbs explain --settings`` says: every key that ``--set`` takes, its default and a meaning."""

from __future__ import annotations

import json

import pytest

from cbs.errors import ConfigError
from cbs.trial.config import TrialConfig
from sweeps.recipes import RECIPES
from sweeps.spec.overrides import NAMES, PLAIN, RUN, override, split
from sweeps.spec.reference import documented, settings

ROWS = settings(RECIPES.make("default"))


def test_every_key_says_what_it_means():
    for row in ROWS:
        assert len(row.meaning.split()) >= 2, row
        assert not row.meaning[0].islower(), row
        assert ":`" not in row.meaning, row
        assert "None" not in row.meaning, row


def test_every_key_that_set_takes_is_listed():
    keys = {row.key for row in ROWS}
    assert {*PLAIN, *NAMES, *RUN, "probe", "averaging", "probe.every", "schedule.name", "evaluation.growth"} <= keys
    assert {"schedule.alpha", "averaging.half_life", "workload.dimension", "schedule.power"} <= keys


def test_a_default_is_typed_as_it_is_shown():
    sweep = RECIPES.make("default")
    rows = [row for row in ROWS if row.group in ("Of every trial", "Learning-rate schedule")]
    assert {row.group for row in rows} == {"Of every trial", "Learning-rate schedule"}
    for row in rows:
        assert override(sweep, [f"{row.key}={row.default}"]) == sweep, row


def test_defaults_of_how_it_runs_are_taken():
    rows = [row for row in ROWS if row.group == "How the sweep runs" and row.default != "none"]
    assert len(split([f"{row.key}={row.default}" for row in rows])[0]) == len(rows) == 3


def test_a_docstring_is_read_over_several_lines():
    text = """One.

    Attributes:
        first, second: of :class:`~package.module.Name`,
            in examples.
        third: ``None`` for ``1``.

    Raises:
        ValueError: never.
    """
    both = "Of Name, in examples."
    assert documented(text) == {"first": both, "second": both, "third": "None for 1."} | {
        "third": "none for 1.".capitalize()
    }
    assert documented(None) == {}


def test_the_command_shows_what_a_word_is_about(run):
    code, out, err = run("explain", "--settings", "cosine", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert rows
    assert all("cosine" in str(row) for row in rows)
    code, out, _ = run("explain", "--settings", "schedule.power")
    assert code == 0
    assert "With schedule.name=polynomial" in out


def test_a_word_that_no_setting_mentions_is_refused(run):
    code, _, err = run("explain", "--settings", "xyzzy")
    assert code == 2
    assert "no setting mentions xyzzy" in err


def test_a_key_that_is_misspelt_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean clip_norm"):
        override(RECIPES.make("default"), ["clip_nrm=1"])
    assert "clip_norm" in documented(TrialConfig.__doc__)
