"""Cases of one kind, of which a few run in the fast suite."""

from collections.abc import Iterable
from typing import Any

import pytest


def kinds(fast: Iterable[Any], rest: Iterable[Any]) -> list[Any]:
    """The cases of a parametrised test; those of the rest have the mark ``slow``."""
    return [
        *fast,
        *(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in rest),
    ]


def kinds_of(cases: Iterable[Any], fast: Iterable[Any]) -> list[Any]:
    """The same, where the fast ones are named out of all."""
    chosen, cases = [*fast], [*cases]
    assert all(case in cases for case in chosen)
    return kinds(chosen, [case for case in cases if case not in chosen])
