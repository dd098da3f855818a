"""Modules of any other type: what they compute is left as it is, their parameters are shared tensors."""

from __future__ import annotations

from typing import Any

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.shared import share


@LAYERS.register("fallback")
class Fallback(Layer):
    """Watches a module without knowing what it computes.

    While it runs, its parameters are :class:`~cbs.noise_scale.layers.shared.Shared`, so that only the functions which
    they meet examples in run group by group. Random numbers are drawn as without it.
    """

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        places = [self._place(name) for name in self.watched]
        if any(holder.get(key) is not mine for (holder, key), mine in zip(places, self.parameters, strict=True)):
            return self.original(*args, **kwargs)
        current = self.recorder.enter(self.name)
        if current is None:
            return self.original(*args, **kwargs)
        current.count(self.watched.values())
        try:
            for (holder, key), mine, index in zip(places, self.parameters, self.watched.values(), strict=True):
                holder[key] = share(mine, self, current, index)
            return self.original(*args, **kwargs)
        finally:
            for (holder, key), mine in zip(places, self.parameters, strict=True):
                holder[key] = mine

    def _place(self, name: str) -> tuple[dict[str, Any], str]:
        """Where a module keeps a parameter."""
        path, _, key = name.rpartition(".")
        return self.module.get_submodule(path)._parameters, key
