"""``--budget``: how much data a trial sees, in examples or in tokens."""

from __future__ import annotations

from collections.abc import Sequence

from cbs.errors import ConfigError
from cbs.schedules.batch_size.text import parse_amount

MOST = 10**15
"""Examples that no run sees."""


def parse_budgets(text: str) -> tuple[tuple[int, ...], bool]:
    """``2e6``, ``1e6,2e6,4e6``, ``64M tokens``, ``16M,64M tokens``: the amounts, increasing, and whether they are in
    tokens.

    Raises:
        ConfigError: if it is none of these, or holds an amount twice.
    """
    words = text.split()
    unit = words.pop() if len(words) > 1 and words[-1] in ("tokens", "examples") else "examples"
    amounts = [_amount(part.strip(), text) for part in " ".join(words).split(",")]
    if len(set(amounts)) < len(amounts):
        raise ConfigError(f"--budget {text}: a budget is there twice")
    return tuple(sorted(amounts)), unit == "tokens"


def in_examples(amounts: Sequence[float], tokens: bool, tokens_per_example: int | None) -> tuple[int, ...]:
    """Budgets as whole numbers of examples.

    Args:
        amounts: as :func:`parse_budgets` returned them.
        tokens: whether these are tokens.
        tokens_per_example: of the workload; ``None`` where its examples have none.

    Raises:
        ConfigError: if there are tokens, but none in an example, or two budgets are the same number of examples.
    """
    if tokens and tokens_per_example is None:
        raise ConfigError("--budget is in tokens, but an example of this workload has none: give it in examples")
    budgets = tuple(max(1, round(amount / (tokens_per_example or 1 if tokens else 1))) for amount in amounts)
    if len(set(budgets)) < len(budgets):
        raise ConfigError(f"--budget: two of them are {budgets[0]:,} examples")
    return budgets


def _amount(part: str, whole: str) -> int:
    try:
        amount = parse_amount(part)
    except ConfigError:
        amount = 0
    if not 1 <= amount <= MOST:
        raise ConfigError(
            "--budget takes examples or tokens that every trial sees, such as 2e6, 1e6,2e6 or '64M tokens'; got "
            f"{whole!r}"
        )
    return amount
