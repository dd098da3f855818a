"""Latest weight averaging (Kaddour 2022, arXiv 2209.14981)."""

from __future__ import annotations

from torch import nn

from cbs.registry.values import whole
from cbs.training.averaging import AVERAGES, WeightAverage


@AVERAGES.register("lawa")
class LAWA(WeightAverage):
    """Mean of the latest ``checkpoints`` checkpoints, or of all while there are fewer.

    Before the first checkpoint the current weights are used. A checkpoint holds the weights after an update that passes
    a multiple of ``every_examples``; the paper takes one at the end of every epoch.

    Args:
        model: the model that is trained.
        checkpoints: number of checkpoints that are averaged, at least 1.
        every_examples: number of examples between checkpoints, at least 1.

    Raises:
        ConfigError: if a value is invalid.
    """

    def __init__(self, model: nn.Module, *, checkpoints: int, every_examples: int) -> None:
        for name, value in {"checkpoints": checkpoints, "every_examples": every_examples}.items():
            whole(f"{name} of averaging 'lawa'", value)
        super().__init__(model)
        self._checkpoints, self._every = checkpoints, every_examples

    def update(self, examples: int, batch_size: int) -> None:
        """Take a checkpoint where one is due, and drop the oldest if there are too many."""
        if examples // self._every > (examples - batch_size) // self._every:
            self.points = [*self.points, [value.clone() for value in self.weights()]][-self._checkpoints :]
