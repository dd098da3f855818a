"""Forward passes: how many examples they have, and which belong together."""

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from cbs.errors import ConfigError

CountExamples = Callable[[tuple[Any, ...], dict[str, Any]], int]
"""Function that returns the number of examples in the arguments ``(args, kwargs)`` of a forward pass."""

TWO_FORWARD = (
    "two forward passes under one backward pass: the noise scale cannot tell whether they hold the same examples; "
    "merge them into one pass, or pass count= to say how many examples both have together; if one is an evaluation, "
    "run it under torch.no_grad()"
)
TWO_BACKWARD = (
    "two backward passes after one forward pass: the noise scale cannot tell them apart; run the model once for each, "
    "or add the losses"
)
SEEN = (
    "two backward passes of a step are over the same examples, which would count twice: add the losses and run one "
    "backward pass, with count= if it has several forward passes"
)
NOT_CALLED = (
    "a gradient reaches the model without a forward pass through it; pass the module that the training loop calls to "
    "the noise scale"
)


def first_dimension(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the first dimension of the first tensor among the arguments.

    Raises:
        ConfigError: if no argument is a tensor.
    """
    for leaf in tree_leaves((tuple(args), dict(kwargs))):
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            return leaf.shape[0]
    raise ConfigError("cannot tell the number of examples: the model's forward pass takes no tensor; pass count=")


Weights = Literal["examples", "ranks"] | Callable[[tuple[Any, ...], dict[str, Any]], Tensor]
"""Weights of examples in the loss of a step: ``"examples"`` where all weigh the same, on ranks of any size; ``"ranks"``
where ranks do, each with the mean over its own examples; or a function of the ``(args, kwargs)`` of a forward pass that
returns those of its examples, shape ``[examples]``, in any unit, such as numbers of tokens."""


def weights_of(weights: Weights | None, examples: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the weights of the examples of a forward pass, float64 on the CPU; ``None`` where no function gives them.

    Raises:
        ConfigError: if they are not one positive number each, or zero.
    """
    if weights is None or isinstance(weights, str):
        return None
    found = torch.as_tensor(weights(args, kwargs)).detach().cpu().double()
    if found.shape != (examples,) or not bool((found >= 0).all()) or not float(found.sum()) > 0:
        raise ConfigError(
            f"weights= has to return one weight for each of {examples} examples, none negative and some positive, but "
            f"returned the shape {list(found.shape)}" + f" with sum {float(found.sum()):.3g}" * (found.ndim == 1)
        )
    return found


class Pass(NamedTuple):
    """One forward pass.

    Attributes:
        number: number of the pass, counted from 1.
        units: places of the examples of every group, shape ``[groups, members]``.
        wrong: why there are no such groups, or no weights; ``None`` if there are.
        rows: first dimensions of the input tensors.
        inputs: the input tensors, and how often each was changed in place.
        weights: weights of the examples, see :func:`weights_of`.
    """

    number: int = 0
    units: Tensor = torch.empty(0, 1, dtype=torch.long)
    wrong: ConfigError | None = None
    rows: Collection[int] = ()
    inputs: Sequence[tuple[weakref.ref[Tensor], int]] = ()
    weights: Tensor | None = None
