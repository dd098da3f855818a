"""Latest weight averaging (Kaddour 2022, arXiv 2209.14981)."""

from __future__ import annotations

from torch import nn

from cbs.registry.domains import whole
from cbs.training.averaging import AVERAGES
from cbs.training.averaging.base import WeightAverage


@AVERAGES.register("lawa")
class LAWA(WeightAverage):
    """Mean of the latest ``checkpoints`` checkpoints, of all while there are fewer, of the weights before the first.

    A checkpoint is the weights after an update that passes a multiple of ``every_examples``; the paper takes one at the
    end of every epoch.

    Args:
        model: the model that is trained.
        checkpoints: copies of the weights that are averaged, at least 1.
        every_examples: examples from one copy to the next, at least 1.

    Raises:
        ConfigError: if a value is outside its domain.
    """

    def __init__(self, model: nn.Module, *, checkpoints: int, every_examples: int) -> None:
        for name, value in {"checkpoints": checkpoints, "every_examples": every_examples}.items():
            whole(f"{name} of averaging 'lawa'", value)
        super().__init__(model)
        self._checkpoints, self._every = checkpoints, every_examples

    def update(self, examples: int, batch_size: int) -> None:
        """A checkpoint, where it is time for one; the oldest of too many goes."""
        if examples // self._every > (examples - batch_size) // self._every:
            self.points = [*self.points, [value.clone() for value in self.weights()]][-self._checkpoints :]
