"""All checks of one optimizer: as a report, as an error, or as tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cbs.testing import construction, state, steps, surroundings
from cbs.testing.check import CHECKS, Check
from cbs.testing.subject import Failure, NotApplicable, Subject, subject

__all__ = ["Report", "checks", "conformance_test", "examine", "require"]
_FILES = (construction, steps, state, surroundings)  # what fills CHECKS


@dataclass(frozen=True)
class Report:
    """What came of the checks.

    Attributes:
        name: of the optimizer.
        passed: names of checks.
        failed: names of checks, with what is wrong.
        left_out: names of checks that do not concern it, with the reason.
    """

    name: str
    passed: tuple[str, ...]
    failed: dict[str, str]
    left_out: dict[str, str]

    def __bool__(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    def __str__(self) -> str:
        """One line, and one for each failure."""
        head = f"{self.name}: {len(self.passed)} checks pass, {len(self.failed)} fail, {len(self.left_out)} left out"
        return "\n".join([head, *(f"  {name}: {problem}" for name, problem in self.failed.items())])


def checks(*, beyond_torch: bool = True, slow: bool = True) -> list[Check]:
    """The checks there are.

    Args:
        beyond_torch: whether with those that torch's own optimizers do not promise.
        slow: whether with those that take more than a second.
    """
    return [one for one in CHECKS if (beyond_torch or not one.beyond_torch) and (slow or not one.slow)]


def examine(target: Subject | str | Callable[..., Any], *, only: Iterable[Check] | None = None, **how: Any) -> Report:
    """Run the checks on an optimizer.

    Args:
        target: a class of optimizers, a name that ``--optim`` takes, or a subject; see
            :func:`~cbs.testing.subject.subject`.
        only: some of :func:`checks`; all by default.
        how: ``lr``, ``matrices`` and options of every construction, for ``subject``.
    """
    tested = subject(target, **how)
    passed, failed, left_out = [], {}, {}
    for one in checks() if only is None else only:
        try:
            one(tested)
        except NotApplicable as reason:
            left_out[one.name] = str(reason)
        except Failure as problem:
            failed[one.name] = str(problem)
        else:
            passed.append(one.name)
    return Report(tested.name, tuple(passed), failed, left_out)


def require(target: Subject | str | Callable[..., Any], **how: Any) -> Report:
    """:func:`examine`, with an error if a check fails.

    Raises:
        Failure: the report.
    """
    report = examine(target, **how)
    if not report:
        raise Failure(str(report))
    return report


def conformance_test(
    *targets: Subject | str | Callable[..., Any], known: Mapping[str, str] | None = None, **how: Any
) -> Callable[..., None]:
    """One test for each optimizer and check, for pytest: ``test_mine = conformance_test(MyOptimizer)``.

    Slow checks bear the mark ``slow``, and a check that does not concern an optimizer is skipped.

    Args:
        targets: see :func:`examine`.
        known: names of checks that are known to fail, with the reason. They must fail.
        how: see :func:`examine`.
    """
    import pytest

    def marks(one: Check) -> list[Any]:
        slow = [pytest.mark.slow] if one.slow else []
        return slow + ([pytest.mark.xfail(strict=True, reason=known[one.name])] if known and one.name in known else [])

    tested = [subject(target, **how) for target in targets]

    @pytest.mark.parametrize("check", [pytest.param(one, id=one.name, marks=marks(one)) for one in checks()])
    @pytest.mark.parametrize("optimizer", tested, ids=[one.name for one in tested])
    def test(optimizer: Subject, check: Check) -> None:
        try:
            check(optimizer)
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return test
