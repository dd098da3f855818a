"""``--lrs sqrt:5e-3@32768``: one learning rate for every batch size, from a rule or a table, instead of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cbs.errors import ConfigError

POWERS = {"sqrt": 0.5, "linear": 1.0}
"""Power of the batch size to which the learning rate is proportional, by the name of the rule."""

_FORMS = "sqrt:5e-3@32768 (5e-3 at batch size 32768, elsewhere by the square root), linear:0.1@256, or 64:1e-3,128:2e-3"


@dataclass(frozen=True, kw_only=True)
class PrescribedRate:
    """A learning rate for every batch size, from a power law or a table.

    Attributes:
        power: power of the batch size; ``None`` for a table.
        lrs: learning rates by batch size: the single point that fixes a power law, or the whole table.
    """

    power: float | None
    lrs: Mapping[int, float] = field(default_factory=dict)

    def at(self, batch_size: int) -> float:
        """Return the learning rate at a batch size, rounded to six digits.

        Raises:
            ConfigError: if a table has no entry for it.
        """
        if self.power is None:
            if batch_size not in self.lrs:
                raise ConfigError(f"there is no learning rate for batch size {batch_size}; add {batch_size}:LR")
            return self.lrs[batch_size]
        ((size, lr),) = self.lrs.items()
        return float(f"{lr * (batch_size / size) ** self.power:.6g}")

    def __str__(self) -> str:
        if self.power is None:
            return ",".join(f"{size}:{lr:g}" for size, lr in sorted(self.lrs.items()))
        name = next(name for name, power in POWERS.items() if power == self.power)
        ((size, lr),) = self.lrs.items()
        return f"{name}:{lr:g}@{size}"


def is_rule(text: str) -> bool:
    """Return whether the learning rates that a user gave are a rule or a table, and not a list to try."""
    return ":" in text


def parse_lr_rule(text: str) -> PrescribedRate:
    """Parse ``sqrt:LR@BATCH_SIZE``, ``linear:LR@BATCH_SIZE``, or ``BATCH_SIZE:LR,BATCH_SIZE:LR,...``.

    Raises:
        ConfigError: if the text has another form, or names a batch size twice.
    """
    name, _, rest = text.partition(":")
    if name.strip() in POWERS:
        start, at, where = rest.partition("@")
        pairs = [(where, start)] if at else []
    else:
        name = ""
        parted = (part.partition(":") for part in text.split(","))
        pairs = [(where, value) for where, _, value in parted]
    lrs: dict[int, float] = {}
    for size_text, lr_text in pairs:
        size, lr = _number(size_text), _number(lr_text)
        if not (size >= 1 and size == int(size) and lr > 0):
            raise ConfigError(f"a rule for learning rates is {_FORMS}; got {text!r}")
        if int(size) in lrs:
            raise ConfigError(f"learning rates {text}: batch size {int(size)} appears twice")
        lrs[int(size)] = lr
    if not lrs:
        raise ConfigError(f"a rule for learning rates is {_FORMS}; got {text!r}")
    return PrescribedRate(power=POWERS.get(name.strip()), lrs=lrs)


def _number(text: str) -> float:
    """Parse a finite number; return -1 if the text is not one."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0
