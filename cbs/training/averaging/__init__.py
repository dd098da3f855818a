"""Averages of the weights over training that are validated in place of the weights; found by name."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from cbs.errors import ConfigError
from cbs.optimizers.scaling import decay_at
from cbs.registry import Registry
from cbs.registry.values import is_number, whole
from cbs.trial.config import Choice

STATISTICS = ("running_mean", "running_var")
"""Buffers of normalization layers that belong to the weights and are averaged with them."""


class WeightAverage(ABC):
    """The mean of some points, each with a value for every trained parameter and running statistic of a model.

    Other buffers are not averaged. Points are kept in float32 or a wider dtype, because small steps towards a weight
    would be lost in bfloat16.

    Example of an average that keeps the weights after the first 100 examples:

    >>> class Early(WeightAverage):
    ...     def update(self, examples, batch_size):
    ...         if not self.points and examples >= 100:
    ...             self.points = [[value.clone() for value in self.weights()]]
    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = Early(model)
    >>> for step in range(1, 5):
    ...     _ = model.weight.data.fill_(step)
    ...     average.update(examples=50 * step, batch_size=50)
    >>> with average.in_place():
    ...     model.weight.item()
    2.0
    >>> model.weight.item()
    4.0

    Args:
        model: the model that is trained.

    Attributes:
        points: points that are averaged with equal weights; empty before there is anything to average.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        buffers = [buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2] in STATISTICS]
        self._tensors: list[Tensor] = [*parameters, *buffers]
        self.points: list[list[Tensor]] = []

    @abstractmethod
    def update(self, examples: int, batch_size: int) -> None:
        """Add the current weights to the average; a trial calls this after every update.

        Args:
            examples: number of examples seen so far.
            batch_size: number of examples in this update.
        """

    def weights(self) -> list[Tensor]:
        """Return the current weights as the values of a point; tensors in float32 or wider are not copied."""
        return [tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in self._tensors]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Run the block with the mean in place of the weights, which are restored bit for bit afterwards."""
        values = self._mean()
        _swap(self._tensors, values)
        try:
            yield
        finally:
            _swap(self._tensors, values)

    def state_dict(self) -> dict[str, list[list[Tensor]]]:
        """Return everything that a later process needs to continue."""
        return {"points": self.points}

    def load_state_dict(self, state: dict[str, list[list[Tensor]]]) -> None:
        """Restore :meth:`state_dict`."""
        self.points = [
            [value.to(tensor.device, copy=True) for value, tensor in zip(point, self._tensors, strict=True)]
            for point in state["points"]
        ]

    def _mean(self) -> list[Tensor]:
        if not self.points:
            return [tensor.detach() for tensor in self._tensors]
        means = [torch.stack(values).mean(0) for values in zip(*self.points, strict=True)]
        return [mean.to(tensor.dtype) for mean, tensor in zip(means, self._tensors, strict=True)]


def _swap(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        # Pointers, not values: nothing is copied or rounded, and the optimizer keeps its tensors.
        tensor.data, value.data = value.data, tensor.data


def answers_for_another_point(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is a schedule-free method (Defazio et al. 2024, arXiv 2405.15682).

    These evaluate an average of their iterates and compute gradients at another point. They are recognized by methods
    called ``eval`` and ``train`` that switch between the two.
    """
    return hasattr(optimizer, "eval") and hasattr(optimizer, "train")


@contextmanager
def averaged_weights(optimizer: torch.optim.Optimizer, average: WeightAverage | None = None) -> Iterator[None]:
    """Run the block with the weights that a trial delivers, then go back to those it trains, bit for bit.

    The delivered weights are the average where there is one, else those that a schedule-free method evaluates, else
    those that are trained.
    """
    if average is not None:
        with average.in_place():
            yield
        return
    if not answers_for_another_point(optimizer):
        yield
        return
    # A schedule-free method computes the trained weights anew from the others, which rounds them.
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    trained = [weight.detach().clone() for weight in weights]
    optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        trained_weights(optimizer)
        with torch.no_grad():
            for weight, value in zip(weights, trained, strict=True):
                weight.copy_(value)


def trained_weights(optimizer: torch.optim.Optimizer) -> None:
    """Switch a schedule-free method to the point where it computes gradients; some refuse to step before this call."""
    if answers_for_another_point(optimizer):
        optimizer.train()  # type: ignore[attr-defined]


AVERAGES: Registry[Callable[..., WeightAverage]] = Registry("averaging", "cbs.training.averaging", makes=WeightAverage)
"""Entries are called as ``entry(model, *, option=default, ...)``, which starts an average at the model's weights."""

__all__ = ["AVERAGES", "WeightAverage", "build_averaging"]


def build_averaging(choice: Choice, model: nn.Module, optimizer: torch.optim.Optimizer) -> WeightAverage:
    """Build the average that a configuration names, over the weights of a model before its first step.

    Raises:
        ConfigError: if the name or an option is unknown, a value is invalid, or the optimizer averages its weights
            itself.
    """
    average: WeightAverage = AVERAGES.make(choice.name, model, **choice.options)
    if answers_for_another_point(optimizer):
        raise ConfigError(
            f"{type(optimizer).__name__} already averages its weights, so averaging {choice.name!r} would validate "
            "neither; use --set averaging=none"
        )
    return average


# Exponential moving average of the weights, EWA in the protocol of Zhang et al. (2025, arXiv 2410.21676).
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


# Latest weight averaging (Kaddour 2022, arXiv 2209.14981).
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
