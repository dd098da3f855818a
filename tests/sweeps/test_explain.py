"""``cbs explain`` knows the words of the output."""

from __future__ import annotations

import pytest

from analysis.estimate.definitions import DEFINITIONS
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.learning_rate_law import Trend
from analysis.questions.scale.fits import NOTHING
from cbs.errors import ConfigError
from cbs.trial.record import TrialStatus
from sweeps.commands.explain import GLOSSARY, command, found_in, meanings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sfo"], "The measured batch size with the fewest examples"),
        (["E_min"], "the limit of the examples for small batches"),
        (["l1"], "geometry (cbs noise-scale): the norm"),
        (["simple", "noise", "scale"], "tr(Sigma) / |G|^2"),
        (["pruned"], "PRUNED: stopped"),
        (["too", "few", "seeds"], "too few seeds: a verdict"),
    ],
)
def test_a_word_has_its_meaning(run, words, said):
    code, out, _ = run("explain", *words)
    assert code == 0
    assert said in " ".join(out.split())
    assert "](" not in out


def test_of_words_in_one_row_each_has_its_own_meaning():
    assert found_in("factor k", meanings()) == {
        "factor k (cbs branch)": "batch size of a branch over that of its trunk"
    }
    assert len(found_in("constant is better", meanings())) == 1


def test_every_status_and_definition_is_there():
    known = meanings()
    assert {*map(str, TrialStatus), *DEFINITIONS} <= set(known)
    assert all(known.values())
    assert "meaning" not in known.values()
    assert GLOSSARY.resolve().parts[-2:] == ("docs", "glossary.md")


@pytest.mark.parametrize("word", [*map(str, Verdict), *map(str, Trend), NOTHING, "B_matched", "LR interior", "P(best)"])
def test_what_a_screen_says_is_known(word):
    assert found_in(word, meanings()), word


def test_a_word_that_is_not_there_has_a_neighbour():
    with pytest.raises(ConfigError, match=r"no word 'prunned'.*did you mean PRUNED"):
        command(["prunned"])
