"""Modules of any other type: what they compute is left as it is, their parameters are shared tensors."""

from __future__ import annotations

from typing import Any

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.layer import Layer


@LAYERS.register("fallback")
class Fallback(Layer):
    """Watches a module without knowing what it computes.

    While it runs, its parameters are :class:`~cbs.noise_scale.layers.shared.Shared`, so that only the functions which
    they meet examples in run group by group. Random numbers are drawn as without it.
    """

    def watch(self, *args: Any, **kwargs: Any) -> Any:
        return self.sharing.run(self.original, *args, **kwargs)
