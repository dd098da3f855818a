"""Several optimizers that step as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cbs.optimizers.contract import CheckedOptimizer, evaluated


def _shared(name: str) -> Any:
    """An attribute that the parts of a composite have from it, whatever it is set to."""

    def get(self: CompositeOptimizer) -> Any:
        return self.__dict__[name]

    def set_(self: CompositeOptimizer, value: Any) -> None:
        self.__dict__[name] = value
        self.share()

    return property(get, set_)


class CompositeOptimizer(CheckedOptimizer):
    """Optimizers of different kinds over disjoint parameters, driven like a single one.

    ``param_groups`` holds the very dictionaries of the parts, in order, then those that were added later, so a learning
    rate set here reaches the part it belongs to. ``state`` is one mapping that all parts share, and ``state_dict()``
    has torch's usual flat format. From then on the parts belong to the composite: step, save, load and extend them only
    through it.

    Hooks for steps of any optimizer run once per step, for the composite. To schedulers that cycle momentum it has
    ``momentum`` if every part has it or ``betas``; the first of the ``betas`` of a group follows a ``momentum`` that is
    set there.

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
        """Evaluate ``closure`` once, if there is one, then step every part; returns what ``closure`` returns."""
        loss = evaluated(closure)
        self.step_parts()
        return loss

    def step_parts(self, **arguments: Any) -> None:
        """Step every part with ``arguments``; its own hooks run, those for any optimizer do not.

        Raises:
            RuntimeError: if a part was given parameters of which the composite does not know.
        """
        if sum(len(part.param_groups) for part in self.optimizers) != len(self.owners):
            raise RuntimeError(
                f"a part of {type(self).__name__} was given parameters: add them to the whole, with part="
            )
        for part in self.optimizers:
            for group in part.param_groups:
                if "momentum" in group and "momentum" not in part.defaults:
                    group["betas"] = (group.pop("momentum"), *group["betas"][1:])
            step = type(part).step
            for pre_hook in part._optimizer_step_pre_hooks.values():
                pre_hook(part, (), arguments)
            # torch wraps step() of every class into what runs the hooks.
            getattr(step, "__wrapped__", step)(part, **arguments)
            for post_hook in part._optimizer_step_post_hooks.values():
                post_hook(part, (), arguments)

    def check(self, group: Mapping[str, Any]) -> None:
        """Nothing: the parts have checked their groups."""

    def state_dtype(self, name: str, param: Tensor) -> torch.dtype | None:
        """The type in which the part of ``param`` keeps its state."""
        for part in self.optimizers:
            if isinstance(part, CheckedOptimizer) and any(
                param is member for group in part.param_groups for member in group["params"]
            ):
                return part.state_dtype(name, param)
        return None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as the last group, to the part whose class ``param_group["part"]`` names.

        Raises:
            ValueError: if that names none of the parts or several, a parameter is in another group, or the part refuses
                the group; all is as it was.
        """
        if not hasattr(self, "optimizers"):  # while it is built
            super().add_param_group(param_group)
            return
        kinds = [type(part).__name__ for part in self.optimizers]
        wanted: Any = param_group.get("part")
        if kinds.count(wanted) != 1:
            raise ValueError(
                f"{type(self).__name__} has several methods: say which is to train new parameters, with "
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
        """Have every part fill in what its groups lack."""
        self.share()
        for part in self.optimizers:
            part.__setstate__({"state": part.state, "param_groups": part.param_groups})

    def share(self) -> None:
        """Give the parts the state, and each its groups."""
        for number, part in enumerate(vars(self).get("optimizers", ())):
            part.state = self.state
            part.param_groups = [g for g, owner in zip(self.param_groups, self.owners, strict=True) if owner == number]
