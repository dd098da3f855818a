"""Detect losses whose term for one example depends on the outputs of other examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.boundary import sending
from cbs.noise_scale.grouping import norms
from cbs.noise_scale.shared_targets import SHARED, SharedTargets

COUPLED = (
    "the loss couples examples: its derivative with respect to the output of one example depends on the outputs of "
    "others, as in contrastive losses; use the source 'accumulation' with micro-batches like those you train with, or "
    "pass groups= to say which examples belong together"
)

LEAVES = 4
"""Number of output tensors of a model that are checked."""

ROUNDING = 1e-7
"""Largest norm of the mixed second derivatives that counts as zero, relative to those of the examples themselves. Where
nothing couples examples the mixed derivatives are exactly zero, without rounding error."""


class Coupling:
    """Check of the first backward pass after a forward pass, before it runs, for terms that couple examples.

    A loss that is a sum over single examples has zero second derivatives with respect to the outputs of two of them. No
    derivative shows that two terms share a target: see :mod:`cbs.noise_scale.shared_targets`.

    To get hold of the loss, ``torch.autograd.backward`` is replaced until its next call; ``Tensor.backward`` and all
    trainers go through it. A loss without second derivatives cannot be checked.

    Attributes:
        idle: number of examples for which the loss has no derivative, and number of all examples, in the latest
            backward pass.
    """

    def __init__(self) -> None:
        self.idle = (0, 0)
        self._shared = SharedTargets()
        self._failure: ConfigError | None = None
        self._restore: Callable[[], None] = lambda: None

    def look(self, outputs: Callable[[], Sequence[Tensor]], examples: int, subsets: Sequence[Tensor]) -> None:
        """Check the next backward pass.

        Args:
            outputs: called when the backward pass comes; returns the tensors with rows of examples from which the loss
                is computed.
            examples: number of examples in the forward pass.
            subsets: masks of whole groups of examples, each of shape ``[examples]``: one half, because terms that
                involve many examples have some in either half, and a single group, because both examples of a term may
                be in one half.
        """
        self.forget()
        self.idle = 0, 0
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self.forget()
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            if len(roots) == 1 and roots[0].numel() == 1:
                leaves = outputs()
                with suppress(RuntimeError):  # tensors that the loss saved for its backward pass may be freed
                    if self._shared.look(roots[0], leaves, subsets[0], int(subsets[1].sum())):
                        self._failure = ConfigError(SHARED)
                for leaf in leaves[:LEAVES]:
                    # Fails for functions without a second derivative and outputs from which others are computed.
                    with sending(), suppress(RuntimeError, NotImplementedError, ConfigError):
                        self._differentiate(roots[0], leaf, examples, subsets)
            original(tensors, *args, **kwargs)

        def restore() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        self._restore = restore
        torch.autograd.backward = backward

    def forget(self) -> None:
        """Stop watching for a backward pass, and release what was kept for the check."""
        restore, self._restore = self._restore, lambda: None
        restore()

    def verify(self) -> None:
        """Raise if the loss couples examples or if examples share targets.

        Raises:
            ConfigError: in these cases; the message says what to do.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _differentiate(self, loss: Tensor, output: Tensor, examples: int, subsets: Sequence[Tensor]) -> None:
        (slope,) = torch.autograd.grad(loss, output, create_graph=True, allow_unused=True)
        if slope is None:
            return
        idle = int((norms(slope, examples) == 0).sum())
        self.idle = min(idle, self.idle[0]) if self.idle[1] else idle, examples
        for mine in subsets if slope.requires_grad else ():
            rows = slope.unflatten(0, (examples, -1))[mine.nonzero()[:, 0].to(slope.device)]
            generator = torch.Generator(rows.device).manual_seed(0)
            direction = torch.randn(rows.shape, generator=generator, device=rows.device).to(rows)
            (second,) = torch.autograd.grad((rows * direction).sum(), output, retain_graph=True, allow_unused=True)
            if second is not None:
                sizes = norms(second, examples)
                if float(sizes[~mine].norm()) > ROUNDING * float(sizes[mine].norm()):
                    self._failure = ConfigError(COUPLED)
