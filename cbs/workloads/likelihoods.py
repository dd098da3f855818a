"""Helpers for the losses of several workloads: samples of the curvature, and means over a fixed validation set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def cross_entropy_sample(outputs: Tensor, generator: torch.Generator) -> Tensor:
    r"""Return gradients of the cross-entropy with respect to the logits, at classes drawn from the model.

    They have mean 0, and their covariance is the Hessian of the cross-entropy, :math:`diag(p) - p p^\top`.

    Args:
        outputs: logits, shape ``[..., classes]``.
        generator: generator of the draws, on the CPU.

    Returns:
        A tensor in the shape of ``outputs``.
    """
    probabilities = outputs.detach().softmax(-1)
    uniform = torch.rand(outputs.shape[:-1], generator=generator).to(outputs.device)
    drawn = (probabilities.cumsum(-1) < uniform[..., None]).sum(-1).clamp_(max=outputs.shape[-1] - 1)
    return probabilities.scatter_add(-1, drawn[..., None], -probabilities.new_ones(*drawn.shape, 1))


class FixedSet:
    """A fixed set of examples, kept on every device on which it was used.

    Args:
        parts: tensors whose first dimension counts examples.
        chunk: largest number of examples per forward pass.
    """

    def __init__(self, parts: tuple[Tensor, ...], chunk: int = 256) -> None:
        self._parts = {torch.device("cpu"): parts}
        self._chunk = chunk

    def __len__(self) -> int:
        return len(self._parts[torch.device("cpu")][0])

    def means(self, values: Callable[[tuple[Tensor, ...]], Tensor], device: torch.device) -> list[float]:
        """Return the means over the set of ``values(batch)``, shape ``[examples, values]``; without gradients.

        Bitwise the same for the same weights.
        """
        if device not in self._parts:
            self._parts[device] = tuple(part.to(device) for part in self._parts[torch.device("cpu")])
        chunks = zip(*(part.split(self._chunk) for part in self._parts[device]), strict=True)
        with torch.no_grad():
            found = torch.cat([values(chunk) for chunk in chunks])
        return found.double().mean(0).tolist()
