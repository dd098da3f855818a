"""Learning rates that are known beforehand: ``--lrs sqrt:5e-3@32768``, one for every batch size from a rule or a table
instead of a search; and the best ones of other results, with which a search starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cbs.errors import ConfigError

# Power of the batch size to which the learning rate is proportional, by the name of the rule
POWERS = {"sqrt": 0.5, "linear": 1.0}

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
        parted = (pair.partition(":") for pair in text.split(","))
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


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Best learning rates of an optimizer according to results of another sweep.

    Attributes:
        source: the folder they were taken from, as given by the user.
        told: description of which results were used, for display.
        batch_sizes: increasing batch sizes, shape ``[M]``, ``M`` at least 1.
        log_lrs: ln of the best learning rate at each, shape ``[M]``.
        variances: variances of ``log_lrs``, shape ``[M]``.
    """

    source: str
    told: str
    batch_sizes: tuple[int, ...]
    log_lrs: tuple[float, ...]
    variances: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.batch_sizes), len(self.log_lrs), len(self.variances)}
        numbers = (*self.batch_sizes, *self.log_lrs, *self.variances)
        if len(lengths) > 1 or not self.batch_sizes or not all(map(math.isfinite, numbers)):
            raise ValueError("it needs one finite learning rate and variance for every batch size")
        if min(self.batch_sizes) < 1 or min(self.variances) < 0:
            raise ValueError("a batch size is below 1 or a variance below 0")

    @property
    def log_sizes(self) -> list[float]:
        return [math.log(size) for size in self.batch_sizes]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Prior:
        """Inverse of :meth:`to_json`.

        Raises:
            TypeError, ValueError: if the data do not describe a prior.
        """
        values = {key: tuple(value) if isinstance(value, list) else str(value) for key, value in data.items()}
        return cls(**values)  # type: ignore[arg-type]
