"""Verdicts from intervals."""

import pytest

from analysis.quantities import Quantity
from extensions.papers.experiments import Beyond, Likely, Monotone, Near, PublishedRelation, Reproduced

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


def test_as_many_numbers_are_compared_as_are_published() -> None:
    assert Near((1.0, 2.0), 0.1).unfit([q(1, 1)]) == "2 numbers are published, and the analysis has 1"
    assert Near((1.0,), 0.1).unfit([q(1, 1)]) == ""


def test_relations_are_told_in_words() -> None:
    words = [str(each) for each in (Near((1.0,), 0.2), Near((7.0,), 0.0), Beyond(1.0), Beyond(0.5, above=False))]
    assert words == ["1 within 0.2", "7, exactly", "above 1", "below 0.5"]
    assert [str(Likely()), str(Monotone()), str(Monotone(rising=False))] == [
        "with probability 0.95 or more",
        "rising",
        "falling",
    ]
