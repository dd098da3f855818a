"""Translate the options of ``cbs sweep`` that say how far it goes into a policy and limits."""

from __future__ import annotations

import math
import time

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from cbs.registry.values import parse_duration
from sweeps.search.limits import Limits
from sweeps.spec.combinations import refuse


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


def policy_of(
    precision: float | None = None,
    runs: float | None = None,
    named: str | None = None,
    *,
    budget: bool = False,
    finds: bool = False,
    more_seeds: bool = True,
    usual: float | None = None,
) -> Choice:
    """Return the policy in :data:`sweeps.launching.policies.POLICIES` that the options ask for.

    Args:
        precision: value of ``--precision``.
        runs: value of ``--max-runs``.
        named: value of ``--set policy=``, a name with options; ``None`` if it was not given.
        budget: whether trials train to a budget.
        finds: whether the sweep has to find its batch sizes, as none were given.
        more_seeds: whether it may use seeds that were not given.
        usual: precision of a sweep that finds its batch sizes, unless it trains to a budget.

    Raises:
        ConfigError: if two options contradict each other.
    """
    asked = {
        "--precision": precision is not None or (finds and named is None),
        "--max-runs": runs is not None,
        "--set policy": named is not None,
        "--budget": budget,
    }
    refuse({name for name, there in asked.items() if there})
    if named is not None:
        return parse_choice(named)
    if precision is None and not finds:
        return Choice(name="once")
    goal = usual if precision is None and not budget else precision
    options = {"goal": goal, "runs": runs, "finds": finds or None, "more_seeds": None if more_seeds else False}
    given = {name: value for name, value in options.items() if value is not None}
    return Choice(name="equal_budgets" if budget else "precision", options=given)
