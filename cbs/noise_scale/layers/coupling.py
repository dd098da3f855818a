"""Whether the loss makes of one example's output what depends on those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from cbs.errors import ConfigError

COUPLED = (
    "the loss couples examples: its derivative by the output of one of them depends on those of others, as with "
    "contrastive losses; use the source 'accumulation' with micro-batches like those you train with, or say with "
    "groups= which examples belong together"
)

ROUNDING = 1e-7
"""Norm of second derivatives that is taken for none, relative to those of the examples themselves: where nothing
couples them, nothing is rounded, either."""


class Coupling:
    """Looks at the first backward pass after a forward pass, before it runs: a loss whose terms are those of single
    examples has no second derivatives by the outputs of two of them.

    The loss is known by what is differentiated: ``torch.autograd.backward`` is replaced until it is called, which is
    what ``Tensor.backward`` and all trainers do. A loss without second derivatives cannot be looked at.

    Attributes:
        idle: examples of which the loss has no derivative, and all examples, of the latest backward pass.
    """

    def __init__(self) -> None:
        self.idle = (0, 0)
        self._failure: ConfigError | None = None
        self._restore: Callable[[], None] = lambda: None

    def look(self, output: Any, examples: int, stay: Tensor, one: Tensor) -> None:
        """Look at the coming backward pass.

        Args:
            output: of the model.
            examples: of the forward pass.
            stay: half of them, in whole groups, shape ``[examples]``: terms of many have some in either half.
            one: a single one, or group: terms of two may have both in one half.
        """
        self.forget()
        self.idle = 0, 0
        outputs = [
            leaf
            for leaf in tree_leaves(output)
            if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.ndim and leaf.shape[0] % examples == 0
        ]
        if not outputs or torch._C._are_functorch_transforms_active():
            return
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._restore()
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            if len(roots) == 1 and roots[0].numel() == 1:
                with suppress(RuntimeError, NotImplementedError):  # a function without a second derivative
                    self._differentiate(roots[0], outputs, examples, stay, one)
            original(tensors, *args, **kwargs)

        def restore() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        self._restore = restore
        torch.autograd.backward = backward

    def forget(self) -> None:
        """Look no more."""
        self._restore()

    def verify(self) -> None:
        """Say what was found.

        Raises:
            ConfigError: if the loss couples examples.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _differentiate(self, loss: Tensor, outputs: Sequence[Tensor], examples: int, stay: Tensor, one: Tensor) -> None:
        # Gradients are enabled in hooks of the outputs, by which they know that this is not the backward pass itself.
        options = {"allow_unused": True, "create_graph": True}
        slopes = [slope for slope in torch.autograd.grad(loss, outputs, **options) if slope is not None]
        if not slopes:
            return
        active = torch.stack([_of_examples(slope, examples) for slope in slopes]).sum(0)
        self.idle = int((active == 0).sum()), examples
        for mine in (stay, one):
            total = loss.new_zeros(())
            generator = torch.Generator().manual_seed(0)
            for slope in slopes:
                if slope.requires_grad:
                    rows = slope.unflatten(0, (examples, -1))[mine.nonzero()[:, 0].to(slope.device)]
                    total = total + (rows * torch.randn(rows.shape, generator=generator).to(rows)).sum()
            if not total.requires_grad:
                return
            second = [slope for slope in torch.autograd.grad(total, outputs, **options) if slope is not None]
            sizes = torch.stack([_of_examples(slope, examples) for slope in second]).sum(0) if second else mine * 0.0
            if float(sizes[~mine].sum()) > ROUNDING**2 * float(sizes[mine].sum()):
                self._failure = ConfigError(COUPLED)


def _of_examples(slope: Tensor, examples: int) -> Tensor:
    """Squared norms, shape ``[examples]``."""
    return slope.detach().abs().double().square().unflatten(0, (examples, -1)).flatten(1).sum(1).cpu()
