"""Exponential moving average of the weights, EWA in the protocol of Zhang et al. (2025, arXiv 2410.21676)."""

from __future__ import annotations

import math

from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from cbs.errors import ConfigError
from cbs.optimizers.scaling import decay_at
from cbs.registry.values import is_number
from cbs.training.averaging import AVERAGES, WeightAverage


@AVERAGES.register("ema")
class EMA(WeightAverage):
    r""":math:`e_t = \gamma e_{t-1} + (1 - \gamma) \theta_t` from the initial weights :math:`e_0 = \theta_0`.

    There is no bias correction for the start: the initial weights have the weight :math:`\gamma^t` after t steps.

    Args:
        model: the model that is trained.
        decay: gamma, the weight of the old average in an update, in [0, 1).
        half_life: alternative to ``decay``: number of examples after which the weight of a point is halved. gamma is
            ``2 ** (-batch_size / half_life)``, which means the same at every batch size.

    Raises:
        ConfigError: unless exactly one of the two is given, with a valid value.
    """

    def __init__(self, model: nn.Module, *, decay: float | None = None, half_life: float | None = None) -> None:
        if (decay is None) == (half_life is None):
            raise ConfigError("averaging 'ema' needs decay or half_life, one of the two")
        value = half_life if decay is None else decay
        if not is_number(value):
            raise ConfigError(f"decay or half_life of averaging 'ema' must be a number, got {value!r}")
        if decay is None and not 0.0 < value < math.inf:
            raise ConfigError(f"half_life of averaging 'ema' must be above 0 examples, got {value!r}")
        if decay is not None and not 0.0 <= decay < 1.0:
            raise ConfigError(f"decay of averaging 'ema' must be in [0, 1), got {decay!r}")
        super().__init__(model)
        self._decay, self._half_life = decay, half_life
        self.points = [[value.clone() for value in self.weights()]]

    def decay(self, batch_size: int) -> float:
        """Return gamma for an update with this many examples."""
        return decay_at(batch_size, self._half_life) if self._half_life is not None else float(self._decay or 0.0)

    def update(self, examples: int, batch_size: int) -> None:
        """Move the average towards the current weights."""
        get_ema_multi_avg_fn(self.decay(batch_size))(self.points[0], self.weights(), None)
