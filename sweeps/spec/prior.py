"""Best learning rates from other results, with which a sweep starts its search."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


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
