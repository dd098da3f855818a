"""Translate the options of ``cbs sweep`` that say how far it goes into a policy and limits."""

from __future__ import annotations

import math
import time

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from cbs.registry.parsing import parse_duration
from sweeps.search.limits import Limits


def limits_of(max_time: str | None, max_examples: float | None) -> Limits:
    """Return the limits after which no trial starts any more.

    Raises:
        ConfigError: if an option cannot be read.
    """
    if max_examples is not None and not max_examples > 0:
        raise ConfigError(f"--max-examples must be above 0, got {max_examples:g}")
    return Limits(
        math.inf if max_time is None else time.monotonic() + parse_duration(max_time),
        math.inf if max_examples is None else max_examples,
    )


def policy_of(precision: float | None, auto: bool, named: str | None, *, budget: bool = False) -> Choice:
    """Return the policy in :data:`sweeps.launching.policies.POLICIES` that the options ask for; ``--precision``
    includes ``--auto``.

    Args:
        precision: value of ``--precision``.
        auto: whether ``--auto`` was given.
        named: value of ``--set policy=``, a name with options; ``None`` if it was not given.
        budget: whether trials train to a budget.

    Raises:
        ConfigError: if two options contradict each other.
    """
    if named is not None and (precision is not None or auto):
        raise ConfigError(f"--set policy={named} sets how the sweep continues: leave out --precision and --auto")
    if named is not None:
        return parse_choice(named)
    if budget and (auto or precision is not None):
        return Choice(name="equal_budgets", options={} if precision is None else {"goal": precision})
    if precision is not None:
        return Choice(name="precision", options={"goal": precision})
    return Choice(name="both_sides" if auto else "once")
