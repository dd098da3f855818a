"""Numbers out of the answers to questions, and verdicts from their intervals."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from analysis.quantities import Quantity
from extensions.papers.experiments import (
    Beyond,
    Expectation,
    Likely,
    Measured,
    Monotone,
    Near,
    NoSuchNumber,
    OurNumber,
    PublishedRelation,
    Reproduced,
    nth,
)
from extensions.papers.reproducing.asking import read
from extensions.papers.reproducing.reproduce import JudgedExpectation, judge
from extensions.papers.reproducing.telling import told

ROWS = (
    SimpleNamespace(name="x", size=8, number=Quantity(1.0, (0.5, 1.5))),
    SimpleNamespace(name="x", size=16, number=Quantity(2.0, (1.0, 4.0))),
    SimpleNamespace(name="y", size=8, number=Quantity(4.0, (3.0, 5.0))),
)


def reading(*places: int, valid_if: Mapping[str, str | int] | None = None, **more: object) -> OurNumber:
    def of(rows: tuple[SimpleNamespace, ...]) -> list[Measured]:
        return [Measured("number", nth(rows, place).number, valid_if or {}) for place in places]

    return OurNumber(question="a", of=of, **more)  # type: ignore[arg-type]


def number(value: float | Quantity | None, **more: object) -> tuple[list[Quantity], list[str]]:
    return read({"a": None}, OurNumber(question="a", of=lambda _: Measured("n", value), **more))  # type: ignore[arg-type]


def test_a_number_comes_with_its_interval_an_exact_one_with_itself() -> None:
    assert number(Quantity(2.0, (None, 4.0))) == ([Quantity(2.0, (None, 4.0))], [])
    assert number(3) == ([Quantity(3, (None, None))], [])
    assert number(3.0, exact=True) == ([Quantity(3.0, (3.0, 3.0))], [])
    assert number(None) == number(Quantity()) == ([], ["a: n has no value"])


def test_a_number_over_another_has_the_interval_of_independent_ones() -> None:
    (ratio,), _ = read({"a": ROWS}, reading(2, over=reading(0)))
    assert ratio == ROWS[2].number.over(ROWS[0].number)
    ratios, _ = read({"a": ROWS}, reading(0, 1, 2, over=reading(0)))
    assert [each.value for each in ratios] == [1.0, 2.0, 4.0]
    with pytest.raises(NoSuchNumber, match="1 numbers over 3"):
        read({"a": ROWS}, reading(0, over=reading(0, 1, 2)))
    assert number(1.0, over=OurNumber(question="a", of=lambda _: Measured("m", None))) == ([], ["a: m has no value"])


def test_what_speaks_against_a_number_is_said() -> None:
    def against(**more: object) -> list[str]:
        return read({"a": ROWS}, reading(0, **more))[1]  # type: ignore[arg-type]

    assert against(valid_if={"verdict": "ok", "flag": False, "count": 0}) == []
    assert against(valid_if={"verdict of x": "too few seeds", "flag": True, "count": 3}) == [
        "a: verdict of x is 'too few seeds'",
        "a: flag is True",
        "a: count is 3",
    ]
    assert against(over=reading(0, valid_if={"flag": True})) == ["a: flag is True"]


def test_a_number_in_doubt_is_shown_and_does_not_count() -> None:
    def judged(valid_if: Mapping[str, str | int] | None = None, *, failed: bool = False) -> JudgedExpectation:
        ours = (reading(0, valid_if=valid_if), reading(2))
        wanted = Expectation(claim="c", published="p", source="s", relation=Beyond(0.0), ours=ours)
        return judge(wanted, {"a": ROWS}, {"a": "no results"} if failed else {})

    sure, doubted, failed = judged(), judged({"verdict": "too few seeds"}), judged(failed=True)
    assert (sure.verdict, sure.why) == (Reproduced.YES, ())
    assert (doubted.verdict, doubted.why) == (Reproduced.UNKNOWN, ("a: verdict is 'too few seeds'",))
    assert doubted.found == sure.found
    assert told(doubted.found, *doubted.why) == "1 [0.5, 1.5], 4 [3, 5] (a: verdict is 'too few seeds')"
    assert told([Quantity(-0.2, (None, 1.2)), Quantity(3.0)], "") == "-0.2 [open, 1.2], 3"
    assert (failed.verdict, failed.found, failed.why) == (Reproduced.UNKNOWN, (), ("no results",))
    assert told(failed.found, *failed.why) == "no results"


YES, NO, UNKNOWN = Reproduced.YES, Reproduced.NO, Reproduced.UNKNOWN


def q(low: float | None, high: float | None, value: float = 1.0) -> Quantity:
    return Quantity(value, (low, high))


CASES = [
    (Near((1.0,), 0.2), [q(0.9, 1.1)], YES),
    (Near((1.0,), 0.2), [q(0.8, 1.2)], YES),
    (Near((1.0,), 0.2), [q(0.9, 1.3)], UNKNOWN),
    (Near((1.0,), 0.2), [q(0.5, 2.0)], UNKNOWN),
    (Near((1.0,), 0.2), [q(1.21, 1.3)], NO),
    (Near((1.0,), 0.2), [q(0.1, 0.79)], NO),
    (Near((1.0,), 0.2), [q(None, None)], UNKNOWN),
    (Near((1.0,), 0.2), [q(1.5, None)], NO),
    (Near((7.0,), 0.0), [q(7.0, 7.0)], YES),
    (Near((7.0,), 0.0), [q(8.0, 8.0)], NO),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1), q(1.9, 2.1)], YES),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1), q(2.9, 3.1)], NO),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1), q(1.0, 3.0)], UNKNOWN),
    (Near((1.0, 2.0), 0.2), [q(0.9, 1.1)], UNKNOWN),
    (Beyond(0.0), [q(0.1, 0.5)], YES),
    (Beyond(0.0), [q(-0.1, 0.5)], UNKNOWN),
    (Beyond(0.0), [q(-0.5, -0.1)], NO),
    (Beyond(0.0), [q(0.1, None)], YES),
    (Beyond(0.0), [q(None, -0.1)], NO),
    (Beyond(0.0, above=False), [q(-0.5, -0.1)], YES),
    (Beyond(0.0, above=False), [q(0.1, 0.5)], NO),
    (Beyond(0.02, above=False), [q(0.01, 0.015)], YES),
    (Beyond(1.0), [q(1.1, 1.2), q(0.9, 1.2)], UNKNOWN),
    (Beyond(1.0), [q(1.1, 1.2), q(0.5, 0.9)], NO),
    (Beyond(1.0), [], UNKNOWN),
    (Likely(), [Quantity(0.97)], YES),
    (Likely(), [Quantity(0.95)], YES),
    (Likely(), [Quantity(0.94)], UNKNOWN),
    (Likely(), [Quantity(0.05)], NO),
    (Likely(), [Quantity(0.06)], UNKNOWN),
    (Monotone(), [q(1, 2), q(None, None), q(3, 4)], UNKNOWN),
    (Monotone(), [q(1, 2), q(1.5, None), q(3, 4)], YES),
    (Monotone(), [q(1, 2), q(1.5, 3), q(3, 4)], YES),
    (Monotone(), [q(1, 2), q(1.5, 3)], UNKNOWN),
    (Monotone(), [q(1, 2), q(5, 6), q(3, 4)], NO),
    (Monotone(), [q(3, 4), q(1, 2)], NO),
    (Monotone(), [q(3, 4), q(2.5, 3.5), q(1, 2.6)], NO),
    (Monotone(), [q(3, 4)], UNKNOWN),
    (Monotone(rising=False), [q(3, 4), q(1, 2)], YES),
    (Monotone(rising=False), [q(1, 2), q(3, 4)], NO),
    (Monotone(), [q(None, None), q(1, 2)], UNKNOWN),
]


@pytest.mark.parametrize(("relation", "found", "verdict"), CASES)
def test_a_verdict_follows_from_intervals(
    relation: PublishedRelation, found: list[Quantity], verdict: Reproduced
) -> None:
    assert relation.verdict(found) is verdict
