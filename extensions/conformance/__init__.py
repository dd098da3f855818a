"""The conformance suite: the contract of a ``torch.optim.Optimizer`` as checks that run on any optimizer.

``print(examine(MyOptimizer))`` reports what is wrong, and ``test_mine = conformance_test(MyOptimizer)`` in a test file
makes a test of each check.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from extensions.conformance import construction, options, state, steps, surroundings
from extensions.conformance.subjects import CHECKS, ContractCheck, Failure, NotApplicable, Subject, subject

__all__ = [
    "ContractCheck",
    "Failure",
    "NotApplicable",
    "Report",
    "Subject",
    "checks",
    "conformance_test",
    "examine",
    "subject",
]

_FILES = (construction, steps, options, state, surroundings)  # importing these fills CHECKS


@dataclass(frozen=True)
class Report:
    """Results of the checks.

    Attributes:
        name: name of the optimizer.
        passed: names of the passed checks.
        failed: names of the failed checks, with what is wrong.
        left_out: names of the checks that do not apply, with the reason.
    """

    name: str
    passed: tuple[str, ...]
    failed: dict[str, str]
    left_out: dict[str, str]

    def __bool__(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def __str__(self) -> str:
        """Return a line of counts, and one line for each failure."""
        head = f"{self.name}: {len(self.passed)} checks pass, {len(self.failed)} fail, {len(self.left_out)} left out"
        return "\n".join([head, *(f"  {name}: {problem}" for name, problem in self.failed.items())])


def checks(*, beyond_torch: bool = True, slow: bool = True) -> list[ContractCheck]:
    """Return the available checks.

    Args:
        beyond_torch: whether to include those that torch's own optimizers do not promise to pass.
        slow: whether to include those that take more than a second.
    """
    return [one for one in CHECKS if (beyond_torch or not one.beyond_torch) and (slow or not one.slow)]


def examine(
    target: Subject | str | Callable[..., Any], *, only: Iterable[ContractCheck] | None = None, **how: Any
) -> Report:
    """Run the checks on an optimizer.

    >>> import torch
    >>> few = [check for check in checks() if check.name in ("check_learns", "check_closure")]
    >>> print(examine(torch.optim.AdamW, only=few))
    AdamW: 2 checks pass, 0 fail, 0 left out

    Args:
        target: a class of optimizers, a name that ``--optim`` accepts, or a subject; see
            :func:`~extensions.conformance.subjects.subject`.
        only: some of :func:`checks`; all by default.
        how: ``lr``, ``matrices`` and options of every construction, passed on to ``subject``.
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


def conformance_test(
    *targets: Subject | str | Callable[..., Any], known: Mapping[tuple[str, str], str] | None = None, **how: Any
) -> Callable[..., None]:
    """Return one test for each optimizer and check, for pytest: ``test_mine = conformance_test(MyOptimizer)``.

    Slow checks have the mark ``slow``, and checks that do not apply to an optimizer are skipped.

    Args:
        targets: see :func:`examine`.
        known: reasons of known failures, by the names of optimizer and check. These checks must fail.
        how: see :func:`examine`.

    Raises:
        ValueError: if ``known`` names an optimizer or check that is not among these.
    """
    import pytest

    pairs = {
        (one.name, check.name): (one, check)
        for one in (subject(target, **how) for target in targets)
        for check in checks()
    }
    reasons = dict(known or {})
    if strangers := reasons.keys() - pairs.keys():
        raise ValueError(f"known failures of optimizers or checks that are not tested: {sorted(strangers)}")

    def marks(key: tuple[str, str], check: ContractCheck) -> list[Any]:
        expected = [pytest.mark.xfail(strict=True, raises=Failure, reason=reasons[key])] if key in reasons else []
        return [*expected, *([pytest.mark.slow] if check.slow else [])]

    cases = [pytest.param(*pair, id="-".join(key), marks=marks(key, pair[1])) for key, pair in pairs.items()]

    @pytest.mark.parametrize(("optimizer", "check"), cases)
    def test(optimizer: Subject, check: ContractCheck) -> None:
        try:
            check(optimizer)
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return test
