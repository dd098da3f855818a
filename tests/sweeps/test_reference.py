"""What ``cbs explain`` says: of every key of ``--set`` its default and a meaning, and of words of the output."""

import ast
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.estimate.definitions import DEFINITIONS
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.learning_rate_law import Trend
from cbs.errors import ConfigError
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialStatus
from sweeps.commands.explain import GLOSSARY, command, found_in, meanings
from sweeps.recipes import RECIPES
from sweeps.spec.overrides import NAMES, PLAIN, RUN, override, split
from sweeps.spec.reference import documented, settings

ROWS = settings(RECIPES.make("default"))
ROOT = Path(__file__).parents[2]


def headings() -> Iterator[tuple[str, str]]:
    """Yield every heading of a table that is written out in the code, with its file."""
    for path in itertools.chain.from_iterable(
        (ROOT / room).rglob("*.py") for room in ("analysis", "sweeps", "extensions")
    ):
        if "tests" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Column", "quantity")
            ):
                positional = node.args[2:3] if node.func.id == "Column" else node.args[1:2]
                for given in (*positional, *(each.value for each in node.keywords if each.arg == "heading")):
                    for heading in written(given):
                        yield heading, path.name


def written(node: ast.AST) -> Iterator[str]:
    """Yield the texts that an expression can be; what is filled in is left out."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(part.value if isinstance(part, ast.Constant) else "0" for part in values)
        case ast.IfExp(body=body, orelse=other):
            yield from (*written(body), *written(other))
        case ast.Call(func=ast.Name(id="when"), args=[_, text]):
            yield from written(text)


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


def test_every_status_and_definition_is_there():
    known = meanings()
    assert {*map(str, TrialStatus), *DEFINITIONS} <= set(known)
    assert all(known.values())
    assert "meaning" not in known.values()
    assert GLOSSARY.resolve().parts[-2:] == ("docs", "glossary.md")


@pytest.mark.parametrize(
    "word",
    [*map(str, Verdict), *map(str, Trend), "B_matched", "LR interior", "P(best)", "no law", "priced", "flat"],
)
def test_what_a_screen_says_is_known(word):
    assert found_in(word, meanings()), word


def test_a_word_that_is_not_there_has_a_neighbour():
    with pytest.raises(ConfigError, match=r"no word 'prunned'.*did you mean PRUNED"):
        command(["prunned"])
