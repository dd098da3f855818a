"""Several optimizers that step as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cbs.optimizers.precision import keep_precision


class CompositeOptimizer(torch.optim.Optimizer):
    """Optimizers of different kinds over disjoint parameters, driven like a single one.

    ``param_groups`` holds the very dictionaries of the parts, in order, so a learning rate set here reaches the part it
    belongs to. ``state`` is one mapping that all parts share, and ``state_dict()`` has torch's usual flat format. From
    then on the parts belong to the composite: step, save and load them only through it.

    Args:
        optimizers: the parts, at least one; no parameter may appear in two of them.

    Raises:
        ValueError: if there is no part, or a parameter appears twice.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in optimizers for group in part.param_groups], {})
        for part in optimizers:
            self.state.update(part.state)
        self.optimizers = list(optimizers)
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluate ``closure`` once, if there is one, then step every part; returns what ``closure`` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.optimizers:
            part.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the composite is built: it could not know which part is meant.

        Raises:
            RuntimeError: always, after construction.
        """
        if hasattr(self, "optimizers"):
            raise RuntimeError("a composite optimizer takes no new parameters; add them to a part before composing")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ``state_dict`` into the parts; every part's state keeps the precision it was saved in."""
        super().load_state_dict(state_dict)
        keep_precision(self, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Loading a state dict ends here too, with new group dictionaries and a new state mapping.
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        start = 0
        for part in self.optimizers:
            end = start + len(part.param_groups)
            part.__setstate__({"state": self.state, "param_groups": self.param_groups[start:end]})
            start = end
