"""Detect losses whose term for one example depends on the outputs of other examples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cbs.errors import ConfigError, reason
from cbs.noise_scale.batch_constants import BatchConstants, weights_divided_by
from cbs.noise_scale.boundary import BeforeBackward, sending
from cbs.noise_scale.grouping import norms
from cbs.noise_scale.shared_targets import SHARED, SURE, chance_of_match, saved

COUPLED = (
    "the loss couples examples: its derivative with respect to the output of one example depends on the outputs of "
    "others, as in contrastive losses; use the source 'accumulation' with micro-batches like those you train with, or "
    "pass groups= to say which examples belong together"
)

UNEVEN = (
    "the loss is divided by the sum of its own batch's weights (class weights, ignored or masked tokens), which are "
    "{:.2g} to {:.2g} times the mean of the examples: a noise scale near the batch size is wrong by up to about {:.0%}"
    ", others by more; pass their weights by weights=, or use 'accumulation' and divide each micro-batch by its own sum"
)
# Smallest relative error due to such weights that is reported
LEAST = 0.05

UNSEEN = "its gradients do not come from loss.backward()"

KINKED = ("Abs", "Clamp", "Hardtanh", "L1Loss", "LeakyRelu", "Maximum", "Minimum", "Relu", "Threshold")
"""Beginnings of the names of operations that have no curvature, but a slope that depends on their argument."""

# Largest norm of mixed second derivatives that counts as zero, relative to those of the examples themselves
ROUNDING = 1e-7

Ends = Callable[[], Sequence[GradientEdge]]
"""Returns, when the backward pass comes, the edges of tensors with rows of examples from which the loss is computed."""


class Coupling:
    """Check of the first backward pass after a forward pass, before it runs, for terms that couple examples.

    A loss that is a sum over single examples has zero second derivatives with respect to the outputs of two of them,
    and no kink whose place depends on both. Kinks are found by the squares of the arguments of :data:`KINKED`
    operations. No derivative shows that two terms share a target: see :mod:`cbs.noise_scale.shared_targets`.

    A loss without second derivatives cannot be checked; neither can examples that enter the
    terms of others as constants, such as keys of a momentum encoder.

    Args:
        parameters: the parameter tensors.
        weights_known: whether unequal weights of examples are taken into account.

    Attributes:
        why_not: why the latest loss could not be checked; empty if it could.
        uneven: a caveat where constants of a loss depend on its batch, such as a sum of weights; empty if none do.
        idle: number of examples without a derivative of the loss, and of all examples, in the latest backward pass.
    """

    def __init__(self, parameters: Sequence[Tensor], *, weights_known: bool = False) -> None:
        self._parameters, self._weights_known = parameters, weights_known
        self.idle, self.why_not, self.uneven = (0, 0), "", ""
        self._divisors: set[float] = set()  # of the losses so far
        self._constants = BatchConstants()
        self._chance = 1.0  # joint probability of all matches since the last loss without one
        self._failure: ConfigError | None = None
        self._passes: dict[int, tuple[Ends, Sequence[Tensor]]] = {}
        self._seen: set[int] = set()
        self._before = BeforeBackward()

    def look(self, number: int, ends: Ends, subsets: Sequence[Tensor]) -> None:
        """Check the next backward pass.

        Args:
            number: number of the forward pass; the two latest are kept, because either may be differentiated.
            ends: see :data:`Ends`.
            subsets: masks of whole groups of examples, each of shape ``[examples]``: one half, because terms that
                involve many examples have some in either half, and a group, as both of a pair may be in one half.
        """
        passes = dict([*self._passes.items()][-1:]) | {number: (ends, subsets)}
        self.forget()
        self.idle, self._passes = (0, 0), passes

        def look(tensors: Any, grad_tensors: Any) -> None:
            self._passes, self.why_not, self._seen = {}, "", {*passes}
            try:
                self._check(tensors, grad_tensors, [*passes.values()])
            except Exception as error:  # noqa: BLE001 - such as a missing second derivative; must not end a training run
                self.why_not = reason(error)

        self._before.call(look)

    def arrived(self, number: int) -> None:
        """Take notice of a gradient at the end of a forward pass."""
        if number not in self._seen:
            self.why_not = UNSEEN

    def forget(self) -> None:
        """Stop watching for a backward pass, and release what was kept for the check."""
        self._passes = {}
        self._before.forget()

    def verify(self) -> None:
        """Raise if the loss couples examples or if examples share targets.

        Raises:
            ConfigError: in these cases; the message says what to do.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _check(self, tensors: Any, grad_tensors: Any, passes: Sequence[tuple[Ends, Sequence[Tensor]]]) -> None:
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given = [grad_tensors] if isinstance(grad_tensors, Tensor) else grad_tensors or [None] * len(roots)
        factors = [torch.ones_like(root) if one is None else one for root, one in zip(roots, given, strict=True)]
        unlike = {str([mask.tolist() for mask in subsets]): subsets for _, subsets in passes}
        for subsets in unlike.values():  # two passes of as many examples may be of the same ones
            edges = [edge for ends, other in passes if len(other[0]) == len(subsets[0]) for edge in ends()]
            weights = None if self._weights_known else weights_divided_by(roots, edges, len(subsets[0]), self._divisors)
            if weights is not None:  # ||w u - G|| differs from ||w (u - G)|| by at most ||(w - 1) G||
                error = (1 + float(weights.std(correction=0)) / (len(weights) / int(subsets[1].sum())) ** 0.5) ** 2 - 1
                if error > LEAST and not self.uneven:
                    self.uneven = UNEVEN.format(float(weights.min()), float(weights.max()), error)
            if int(subsets[1].sum()) == 1 and not self.uneven:
                self._constants.add(roots, edges, len(subsets[0]), weights_known=self._weights_known)
                self.uneven = self._constants.found
            chance = chance_of_match(roots, edges, subsets[0], int(subsets[1].sum()))
            self._chance = 1.0 if chance is None else self._chance * chance
            if self._chance < SURE:
                self._failure = ConfigError(SHARED)
            kinks = [rows for name, rows in saved(roots, edges) if name.startswith(KINKED) and rows.requires_grad]
            failures: list[Exception] = []
            for some in (edges, *([edge] for edge in edges)):  # one may have second derivatives where all have not
                try:
                    with sending(self._parameters):
                        free = [factor.detach().requires_grad_() for factor in factors]  # every slope depends on them
                        self.idle = self._differentiate(roots, free, some, subsets) or self.idle
                        if kinks:
                            self._differentiate(kinks, kinks, some, subsets)
                except Exception as error:  # noqa: BLE001 - raised below if no output can be looked at
                    failures.append(error)
                if not failures:
                    break
            if len(failures) == 1 + len(edges):
                raise failures[0]

    def _differentiate(
        self,
        roots: Sequence[Tensor],
        factors: Sequence[Tensor],
        edges: Sequence[GradientEdge],
        subsets: Sequence[Tensor],
    ) -> tuple[int, int] | None:
        """Look for second derivatives by two examples; return the numbers of idle and of all examples."""
        examples = len(subsets[0])
        slopes = torch.autograd.grad(roots, edges, factors, create_graph=True, allow_unused=True)
        reached = [(edge, slope) for edge, slope in zip(edges, slopes, strict=True) if slope is not None]
        if not reached:
            return None
        if any(slope.grad_fn is None or "Error" in slope.grad_fn.name() for _, slope in reached):
            raise NotImplementedError("it has no second derivatives")
        for mine in subsets:
            total = torch.zeros(())
            for _, slope in reached:
                rows = slope.unflatten(0, (examples, -1))[mine.nonzero()[:, 0].to(slope.device)]
                generator = torch.Generator(rows.device).manual_seed(0)
                direction = torch.randn(rows.shape, generator=generator, device=rows.device).to(rows)
                total = total.to(rows) + (rows * direction).sum()
            seconds = torch.autograd.grad(total, [edge for edge, _ in reached], retain_graph=True, allow_unused=True)
            sizes = _norms(seconds, examples)
            if float(sizes[~mine].norm()) > ROUNDING * float(sizes[mine].norm()):
                self._failure = ConfigError(COUPLED)
        return int((_norms(slopes, examples) == 0).sum()), examples


def _norms(tensors: Sequence[Tensor | None], examples: int) -> Tensor:
    """Return the norm over all tensors of the rows of every example."""
    found = [norms(rows, examples) for rows in tensors if rows is not None]
    return torch.stack(found).norm(dim=0) if found else torch.zeros(examples)
