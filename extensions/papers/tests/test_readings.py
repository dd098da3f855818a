"""Numbers out of the JSON of analyses."""

from __future__ import annotations

import pytest

from analysis.quantities import Quantity
from extensions.papers.experiments import AnswerPath, Beyond, Expectation, Reproduced
from extensions.papers.experiments.base import EACH
from extensions.papers.reproducing.asking import NoSuchNumber, doubts, in_short, in_words, read
from extensions.papers.reproducing.reproduce import JudgedExpectation, judge
from extensions.papers.reproducing.telling import told

CONTENT = {
    "a": {
        "verdict": "ok",
        "no": False,
        "none": 0,
        "doubt": "too few seeds",
        "plain": 3,
        "yes": True,
        "exponent": 1.5,
        "exponent_interval": [1.0, 2.0],
        "open": {"value": 2.0, "interval": [None, 4.0]},
        "optimum": {"batch_size": 64, "lr": 0.5, "interval": [0.25, 1.0]},
        "unknown": {"value": None, "interval": [None, None]},
        "rows": [
            {"name": "x", "size": 8, "value": 1.0, "interval": [0.5, 1.5]},
            {"name": "x", "size": 16, "value": 2.0, "interval": [1.0, 4.0]},
            {"name": "y", "size": 8, "value": 4.0, "interval": [3.0, 5.0]},
        ],
    }
}


def found(*path: object, **more: object) -> list[Quantity]:
    return read(CONTENT, AnswerPath(analysis="a", path=path, **more))  # type: ignore[arg-type]


def test_a_number_comes_with_its_interval_however_it_is_stored() -> None:
    assert found("exponent") == [Quantity(1.5, (1.0, 2.0))]
    assert found("open") == [Quantity(2.0, (None, 4.0))]
    assert found("rows", 0, "value") == [Quantity(1.0, (0.5, 1.5))]
    assert found("rows", -1) == [Quantity(4.0, (3.0, 5.0))]
    assert found("plain") == [Quantity(3.0, (None, None))]
    assert found("optimum", "lr") == [Quantity(0.5, (0.25, 1.0))]
    assert found("rows", 0, "size") == [Quantity(8.0, (None, None))]  # the interval there is that of the value
    assert found("plain", exact=True) == [Quantity(3.0, (3.0, 3.0))]


def test_an_entry_is_found_by_what_it_has_and_all_in_their_order() -> None:
    assert found("rows", {"name": "x", "size": 16}, "value") == [Quantity(2.0, (1.0, 4.0))]
    assert found("rows", {"name": "x", "size": 16}) == [Quantity(2.0, (1.0, 4.0))]
    assert [each.value for each in found("rows", EACH, "value")] == [1.0, 2.0, 4.0]


def test_a_number_over_another_has_the_interval_of_independent_ones() -> None:
    (ratio,) = found("rows", 2, "value", over=AnswerPath(analysis="a", path=("rows", 0, "value")))
    assert ratio.value == 4.0
    low, high = ratio.interval
    assert low is not None
    assert high is not None
    assert 2.0 < low < 4.0 < high < 10.0
    ratios = found("rows", EACH, "value", over=AnswerPath(analysis="a", path=("rows", 0, "value")))
    assert [each.value for each in ratios] == [1.0, 2.0, 4.0]
    with pytest.raises(NoSuchNumber, match="1 numbers over 3"):
        found("plain", over=AnswerPath(analysis="a", path=("rows", EACH, "value")))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (("nothing",), "there is no nothing"),
        (("rows", 7, "value"), r"there is no rows\[7\]"),
        (("rows", {"name": "z"}, "value"), r"0 entries fit \[name=z\]"),
        (("rows", {"name": "x"}, "value"), r"2 entries fit \[name=x\]"),
        (("unknown",), "a: unknown is None, not a number"),
        (("yes",), "a: yes is True, not a number"),
        (("verdict",), "a: verdict is 'ok', not a number"),
        (("plain", "deeper"), "there is no plain.deeper"),
    ],
)
def test_what_is_not_there_is_said(path: tuple[object, ...], says: str) -> None:
    with pytest.raises(NoSuchNumber, match=says):
        found(*path)


def test_what_speaks_against_a_number_is_said() -> None:
    def against(*ok: str, **more: object) -> list[str]:
        return doubts(CONTENT, AnswerPath(analysis="a", path=("plain",), ok=tuple((name,) for name in ok), **more))  # type: ignore[arg-type]

    assert against("verdict", "no", "none") == []
    assert against("doubt", "verdict", "yes") == ["a: doubt is 'too few seeds'", "a: yes is True"]
    assert against("plain") == ["a: plain is 3"]
    assert against("no", over=AnswerPath(analysis="a", path=("plain",), ok=(("doubt",),))) == [
        "a: doubt is 'too few seeds'"
    ]
    with pytest.raises(NoSuchNumber, match="there is no nothing"):
        against("nothing")


def test_a_number_in_doubt_is_shown_and_does_not_count() -> None:
    def judged(*ok: tuple[str, ...], failures: dict[str, str] | None = None) -> JudgedExpectation:
        ours = tuple(AnswerPath(analysis="a", path=("rows", place, "value"), ok=ok) for place in (0, 2))
        wanted = Expectation(claim="c", published="p", source="s", relation=Beyond(0.0), ours=ours)
        return judge(wanted, CONTENT, failures or {})

    sure, doubted, failed = judged(), judged(("doubt",)), judged(failures={"a": "no results"})
    assert (sure.verdict, sure.why) == (Reproduced.YES, ())
    assert (doubted.verdict, doubted.why) == (Reproduced.UNKNOWN, ("a: doubt is 'too few seeds'",))
    assert doubted.found == sure.found
    assert told(doubted.found, *doubted.why) == "1 [0.5, 1.5], 4 [3, 5] (a: doubt is 'too few seeds')"
    assert told([Quantity(-0.2, (None, 1.2)), Quantity(3.0)], "") == "-0.2 [open, 1.2], 3"
    assert (failed.verdict, failed.found, failed.why) == (Reproduced.UNKNOWN, (), ("no results",))
    assert told(failed.found, *failed.why) == "no results"


def test_a_path_in_words() -> None:
    assert in_short(("fits", {"optimizer": "merit"}, "at", -1, EACH, "verdict")) == "verdict of merit"
    assert in_short(("rows", 0, "value")) == "value"
    assert in_words(("fits", {"optimizer": "merit"}, "at", -1, EACH)) == "fits[optimizer=merit].at[-1][*]"
