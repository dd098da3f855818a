"""Whether the rows that a layer sees belong to single examples, found out by a backward pass from a single example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cbs.errors import ConfigError

if TYPE_CHECKING:
    from cbs.noise_scale.layers.recorder import Recorder


class FirstOutput:
    """Forward hook that differentiates the last example of a model's first output and looks which rows it reaches.

    The last one, because under causal attention the first rows of a sequence reach no others. Without effect where the
    output has no tensor with examples first, or layers are called from compiled code, which cannot be differentiated
    twice.

    Args:
        model: called in the training loop.
        recorder: of its layers.
        parameters: the watched parameter tensors.

    Raises:
        ConfigError: if a row of another example is reached.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, parameters: Sequence[Tensor]) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self.handle = model.register_forward_hook(self)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not (torch.is_grad_enabled() and self._recorder.examples):
            return
        self.handle.remove()
        self._recorder.checked = True
        examples = self._recorder.examples
        leaves = tree_leaves(list(output.values()) if isinstance(output, Mapping) else output)
        found = [
            leaf
            for leaf in leaves
            if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.ndim and leaf.shape[0] % examples == 0
        ]
        if not found or self._recorder.compiled or examples == 1:
            return
        last = found[0][-(found[0].shape[0] // examples) :]
        # Equal weights would miss whatever is normalised.
        weights = torch.arange(1, last.numel() + 1, device=last.device).cos().view(last.shape).to(last.dtype)
        self._recorder.checking = True
        try:
            torch.autograd.grad(last, self._parameters, weights, retain_graph=True, allow_unused=True)
        finally:
            self._recorder.checking = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Nothing:
        return Nothing()

    def __reduce__(self) -> Any:
        return Nothing, ()


class Nothing:
    """What becomes of the hook in a copy of the model, which is not watched."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        pass


def check_separation(layer: str, gradient: Tensor, examples: int) -> None:
    """Look at the gradient of a layer's output in a backward pass from the last example.

    Raises:
        ConfigError: if it reaches rows of other examples.
    """
    others = gradient[: gradient.shape[0] - gradient.shape[0] // examples]
    if bool((others.abs() > 0).any()):
        raise ConfigError(
            f"the output for one example depends on what layer {layer!r} computes for others: the model mixes examples "
            "or they do not come first in this layer; put them first (batch_first=True), or use the source "
            "'accumulation'"
        )
