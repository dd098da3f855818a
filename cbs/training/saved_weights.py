"""Model and optimizer in a checkpoint, as whole tensors, whether or not ranks hold parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cbs.compute.sharding import parted, parted_state, whole
from cbs.training.parts import Part
from cbs.training.ranks import Ranks


class SavedWeights(Part):
    """Part of the loop that saves and restores the state of model and optimizer.

    Args:
        model: model that is trained.
        optimizer: optimizer of the trial.
        ranks: the workers of the trial; if they shard the model, its state is gathered on the first of them.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
        self._model, self._optimizer, self._ranks = model, optimizer, ranks

    def state(self) -> dict[str, Any]:
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return whole(state, keep=self._ranks.first) if self._ranks.shard else state

    def load_state(self, state: dict[str, Any]) -> None:
        self.load(state["model"], state["optimizer"])

    def load(self, model: Mapping[str, Any], optimizer: dict[str, Any] | None) -> None:
        """Load whole tensors; without an optimizer state the optimizer stays as it is."""
        if self._ranks.shard:
            model = parted(dict(model), self._model.state_dict())
        self._model.load_state_dict(model)
        if optimizer is None:
            return
        if self._ranks.shard:
            groups = self._optimizer.param_groups
            optimizer = parted_state(optimizer, [weight for group in groups for weight in group["params"]])
        self._optimizer.load_state_dict(optimizer)
