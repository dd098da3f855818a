"""The gradient noise scale along one run, as :meth:`cbs.noise_scale_run.NoiseScaleRun.to_json` gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MeasuredRun:
    """A run that was measured.

    Attributes:
        values: plain JSON values: the configuration and, per phase, the noise scale in every geometry with its
            interval.
    """

    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dict(self.values)
