"""Whether the loss makes of one example's output what depends on those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.boundary import sending
from cbs.noise_scale.shared_targets import SHARED, SharedTargets

COUPLED = (
    "the loss couples examples: its derivative by the output of one of them depends on those of others, as with "
    "contrastive losses; use the source 'accumulation' with micro-batches like those you train with, or say with "
    "groups= which examples belong together"
)

LEAVES = 4
"""Tensors of a model's output that are looked at."""

ROUNDING = 1e-7
"""Norm of second derivatives that is taken for none, relative to those of the examples themselves: where nothing
couples them, nothing is rounded, either."""


class Coupling:
    """Looks at the first backward pass after a forward pass, before it runs: a loss whose terms are those of single
    examples has no second derivatives by the outputs of two of them.

    That two terms share a target no derivative tells: see :mod:`cbs.noise_scale.shared_targets`.

    The loss is known by what is differentiated: ``torch.autograd.backward`` is replaced until it is called, which is
    what ``Tensor.backward`` and all trainers do. A loss without second derivatives cannot be looked at.

    Attributes:
        idle: examples of which the loss has no derivative, and all examples, of the latest backward pass.
    """

    def __init__(self) -> None:
        self.idle = (0, 0)
        self._shared = SharedTargets()
        self._failure: ConfigError | None = None
        self._restore: Callable[[], None] = lambda: None

    def look(self, outputs: Callable[[], Sequence[Tensor]], examples: int, subsets: Sequence[Tensor]) -> None:
        """Look at the coming backward pass.

        Args:
            outputs: called when it comes; tensors with rows of examples, which it makes its loss of.
            examples: of the forward pass.
            subsets: some of them, in whole groups, each of shape ``[examples]``: half, as terms of many have some in
                either half, and a single one, as terms of two may have both in one half.
        """
        self.forget()
        self.idle = 0, 0
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self.forget()
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            if len(roots) == 1 and roots[0].numel() == 1:
                leaves = outputs()
                with suppress(RuntimeError):  # what a loss kept for its backward pass may be gone
                    if self._shared.look(roots[0], leaves, subsets[0], int(subsets[1].sum())):
                        self._failure = ConfigError(SHARED)
                for leaf in leaves[:LEAVES]:
                    # a function without a second derivative, or an output that goes through a layer on to another one
                    with sending(), suppress(RuntimeError, NotImplementedError, ConfigError):
                        self._differentiate(roots[0], leaf, examples, subsets)
            original(tensors, *args, **kwargs)

        def restore() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        self._restore = restore
        torch.autograd.backward = backward

    def forget(self) -> None:
        """Stop looking, and release what was looked at."""
        restore, self._restore = self._restore, lambda: None
        restore()

    def verify(self) -> None:
        """Say what was found.

        Raises:
            ConfigError: if the loss couples examples, or they share targets.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _differentiate(self, loss: Tensor, output: Tensor, examples: int, subsets: Sequence[Tensor]) -> None:
        (slope,) = torch.autograd.grad(loss, output, create_graph=True, allow_unused=True)
        if slope is None:
            return
        idle = int((_of_examples(slope, examples) == 0).sum())
        self.idle = min(idle, self.idle[0]) if self.idle[1] else idle, examples
        for mine in subsets if slope.requires_grad else ():
            rows = slope.unflatten(0, (examples, -1))[mine.nonzero()[:, 0].to(slope.device)]
            direction = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)).to(rows)
            (second,) = torch.autograd.grad((rows * direction).sum(), output, create_graph=True, allow_unused=True)
            if second is not None:
                sizes = _of_examples(second, examples)
                if float(sizes[~mine].sum()) > ROUNDING**2 * float(sizes[mine].sum()):
                    self._failure = ConfigError(COUPLED)


def _of_examples(slope: Tensor, examples: int) -> Tensor:
    """Squared norms, shape ``[examples]``."""
    return slope.detach().abs().double().square().unflatten(0, (examples, -1)).flatten(1).sum(1).cpu()
