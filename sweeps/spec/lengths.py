"""How long trials train: the learning-rate schedule of a sweep, from which that of a trial follows by its batch size,
and ``--budget``, how much data every trial sees, in examples or in tokens.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cbs.errors import ConfigError
from cbs.registry.values import parse_amount
from cbs.schedules.learning_rate import build_schedule
from cbs.trial.config import Schedule


@dataclass(frozen=True, kw_only=True)
class ScheduleRule:
    """Learning-rate schedule of a sweep, from which that of a trial follows by its batch size.

    Attributes:
        name: name in :data:`cbs.schedules.learning_rate.SCHEDULES`.
        warmup_steps: warmup length in updates; the same number at every batch size.
        warmup_examples: warmup length in examples; replaces ``warmup_steps`` when given.
        decay_examples: examples after which the decay is complete.
        final_fraction: learning rate at the end of the decay, as a fraction of the peak.
        options: further options of the named schedule.
    """

    name: str = "constant"
    warmup_steps: int = 10
    warmup_examples: int | None = None
    decay_examples: int | None = None
    final_fraction: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def at(self, batch_size: int) -> Schedule:
        """Return the schedule of a trial at ``batch_size``."""
        warmup = self.warmup_steps * batch_size if self.warmup_examples is None else self.warmup_examples
        return Schedule(
            name=self.name,
            warmup_examples=warmup,
            decay_examples=self.decay_examples,
            final_fraction=self.final_fraction,
            options=self.options,
        )

    def ends_with(self, budget: int) -> bool:
        """Return whether the schedule depends on a run's budget in examples: it decays, and no end of the decay is
        given."""
        if self.decay_examples is not None:
            return False
        first = dataclasses.replace(self.at(1), warmup_examples=min(1, self.at(1).warmup_examples))
        short, long = (
            build_schedule(dataclasses.replace(first, decay_examples=times * budget + 2)) for times in (1, 2)
        )
        # looked at each quarter, as a schedule may decay late; from the second step on, after the warmup of one example
        return any(short(budget * part // 4 + 1) != long(budget * part // 4 + 1) for part in (1, 2, 3, 4))


# Largest accepted budget in examples; no run sees more
MOST = 10**15


def parse_budgets(text: str) -> tuple[tuple[int, ...], bool]:
    """Parse ``2e6``, ``1e6,2e6,4e6``, ``64M tokens`` or ``16M,64M tokens``.

    Returns the amounts in increasing order, and whether they are tokens.

    Raises:
        ConfigError: if the text has another form, or an amount appears twice.
    """
    words = text.split()
    unit = words.pop() if len(words) > 1 and words[-1] in ("tokens", "examples") else "examples"
    amounts = [_amount(part.strip(), text) for part in " ".join(words).split(",")]
    if len(set(amounts)) < len(amounts):
        raise ConfigError(f"--budget {text}: a budget appears twice")
    return tuple(sorted(amounts)), unit == "tokens"


def in_examples(amounts: Sequence[float], tokens: bool, tokens_per_example: int | None) -> tuple[int, ...]:
    """Convert budgets to whole numbers of examples.

    Args:
        amounts: amounts returned by :func:`parse_budgets`.
        tokens: whether these are tokens.
        tokens_per_example: number of tokens per example of the workload; ``None`` if its examples have none.

    Raises:
        ConfigError: if tokens are given but examples have none, or two budgets are the same number of examples.
    """
    if tokens and tokens_per_example is None:
        raise ConfigError("--budget is in tokens, but examples of this workload have none: give it in examples")
    budgets = tuple(max(1, round(amount / (tokens_per_example or 1 if tokens else 1))) for amount in amounts)
    if len(set(budgets)) < len(budgets):
        raise ConfigError(f"--budget: two of the budgets are {budgets[0]:,} examples")
    return budgets


def check_budget(least: int, largest: int, schedule: ScheduleRule | None) -> None:
    """Check that a budget holds a batch, the warmup and the decay.

    Args:
        least: the smallest budget, in examples.
        largest: the largest batch size.
        schedule: the learning-rate schedule; ``None`` if it is that of a parent, whose end does not depend on the
            budget.

    Raises:
        ConfigError: if it does not.
    """
    if least < largest:
        raise ConfigError(f"a budget of {least:,} examples is less than one batch of {largest:,}")
    if schedule is None:
        return
    warmup, decay = schedule.at(largest).warmup_examples, schedule.decay_examples
    if warmup >= least:
        raise ConfigError(
            f"the warmup takes {warmup:,} examples at batch size {largest}, the budget is {least:,}: shorten it "
            "with --set schedule.warmup_steps, or leave out the batch size"
        )
    if decay is not None and decay > least:
        raise ConfigError(
            f"the learning rate decays for {decay:,} examples, the budget is {least:,}: leave out "
            "schedule.decay_examples, and the decay ends with the budget"
        )


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
