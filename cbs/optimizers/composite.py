"""Several optimizers that act as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cbs.optimizers.adam import Adam
from cbs.optimizers.contract import CheckedOptimizer, evaluated


def _shared(name: str) -> Any:
    """Return an attribute of a composite that is shared with its parts whenever it is assigned."""

    def get(self: CompositeOptimizer) -> Any:
        return self.__dict__[name]

    def set_(self: CompositeOptimizer, value: Any) -> None:
        self.__dict__[name] = value
        self.share()

    return property(get, set_)


class CompositeOptimizer(CheckedOptimizer):
    """Optimizers of different kinds over disjoint parameters, driven like a single one.

    ``param_groups`` holds the same dictionaries as the parts, in order, then those that were added later, so a learning
    rate set here reaches the part it belongs to. ``state`` is one mapping that all parts share, and ``state_dict()``
    has torch's usual flat format. The parts then belong to the composite: step, save, load and extend them only through
    it.

    Global step hooks run once per step, for the composite. For schedulers that cycle momentum it has the default
    ``momentum`` if every part has ``momentum`` or ``betas``; a ``momentum`` set in a group with ``betas`` replaces the
    first of them.

    >>> weight, bias = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    >>> both = CompositeOptimizer([torch.optim.Muon([weight]), torch.optim.AdamW([bias])])
    >>> len(both.param_groups)
    2

    Args:
        optimizers: the parts, at least one; no parameter may appear in two of them.

    Raises:
        ValueError: if there is no part, or a parameter appears twice.
    """

    state = _shared("state")
    param_groups = _shared("param_groups")

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in optimizers for group in part.param_groups], {})
        for part in optimizers:
            self.state.update(part.state)
        self.owners = [number for number, part in enumerate(optimizers) for _ in part.param_groups]
        self.optimizers = list(optimizers)
        self.share()
        known = [part.defaults for part in optimizers]
        if all("betas" in defaults for defaults in known):
            self.defaults = {"betas": known[0]["betas"]}
        elif all("betas" in defaults or "momentum" in defaults for defaults in known):
            self.defaults = {"momentum": next(defaults["momentum"] for defaults in known if "momentum" in defaults)}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluate ``closure`` once, if there is one, then step every part; return the closure's result."""
        loss = evaluated(closure)
        self.step_parts()
        return loss

    def step_parts(self, **arguments: Any) -> None:
        """Step every part with ``arguments``; the parts' own hooks run, global step hooks do not.

        Raises:
            RuntimeError: if parameters were added to a part instead of the composite.
        """
        if sum(len(part.param_groups) for part in self.optimizers) != len(self.owners):
            raise RuntimeError(
                f"parameters were added to a part of {type(self).__name__}: add them to the composite, with part="
            )
        for part in self.optimizers:
            for group in part.param_groups:
                if "momentum" in group and "momentum" not in part.defaults:
                    group["betas"] = (group.pop("momentum"), *group["betas"][1:])
            step = type(part).step
            for pre_hook in part._optimizer_step_pre_hooks.values():
                pre_hook(part, (), arguments)
            # torch wraps step() of every class in a function that runs the hooks.
            getattr(step, "__wrapped__", step)(part, **arguments)
            for post_hook in part._optimizer_step_post_hooks.values():
                post_hook(part, (), arguments)

    def check(self, group: Mapping[str, Any]) -> None:
        """Do nothing: the parts have checked their groups."""

    def state_dtype(self, name: str, param: Tensor) -> torch.dtype | None:
        """Return the dtype in which the part of ``param`` keeps its state."""
        for part in self.optimizers:
            if isinstance(part, CheckedOptimizer | Adam) and any(
                param is member for group in part.param_groups for member in group["params"]
            ):
                return part.state_dtype(name, param)
        return None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters as the last group, to the part whose class ``param_group["part"]`` names.

        Raises:
            ValueError: if no part or several have that class, a parameter is in another group, or the part refuses the
                group; nothing is changed then.
        """
        if not hasattr(self, "optimizers"):  # while it is built
            super().add_param_group(param_group)
            return
        kinds = [type(part).__name__ for part in self.optimizers]
        wanted: Any = param_group.get("part")
        if kinds.count(wanted) != 1:
            raise ValueError(
                f"{type(self).__name__} has several parts: name the one that trains the new parameters with "
                f"part={' or '.join(dict.fromkeys(kinds))} in their group, got {wanted}"
            )
        part = self.optimizers[kinds.index(wanted)]
        part.add_param_group({key: value for key, value in param_group.items() if key != "part"})
        added = part.param_groups.pop()
        held = {id(param) for group in self.param_groups for param in group["params"]}
        if not held.isdisjoint(map(id, added["params"])):
            raise ValueError("some parameters appear in more than one parameter group")
        self.owners.append(kinds.index(wanted))
        self.param_groups.append(added)
        self.share()

    def complete(self) -> None:
        """Let every part fill in options that its groups lack."""
        self.share()
        for part in self.optimizers:
            part.__setstate__({"state": part.state, "param_groups": part.param_groups})

    def share(self) -> None:
        """Assign the shared state, and each part's groups, to the parts."""
        for number, part in enumerate(vars(self).get("optimizers", ())):
            part.state = self.state
            part.param_groups = [g for g, owner in zip(self.param_groups, self.owners, strict=True) if owner == number]
