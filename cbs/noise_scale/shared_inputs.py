r"""Detect batches whose examples are more alike in their inputs than independent examples are.

One masking ratio, length or data set drawn for a whole batch shows in what is fed to the model, long before products of
gradients tell it (:mod:`cbs.noise_scale.shared_by_batch`) and also while parameters move. Mean and mean square of an
example's inputs, and the share of zeros among them, are compared between batches. For G independent examples with
variance v within batches, the means of batches have the variance v/G; what is more, they share. Second differences
between successive batches are taken, so that a slow drift of the data does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cbs.noise_scale.cut import has_rows
from cbs.noise_scale.geometries.base import as_real
from cbs.noise_scale.shared_by_batch import CAUSES

TENSORS, COLUMNS = 4, 256
"""Largest number of input tensors that are looked at, and of numbers of an example in each."""

OF_EXAMPLE = "mean", "mean square", "share of zeros"
"""What is compared of an example's numbers."""

FIRST, MOST = 48, 4096
"""Number of batches of one shape from which on they are compared, and after which no more are."""

BLOCKS, SURE = 16, 3.0
"""Number of blocks of successive batches that give the standard error, and by how many of these is sure."""

SHARE = 0.1
"""Least correlation between examples of a batch that is told."""

CONSTANT = 1e-3
"""Relative change of a number that all examples of a batch have in common which does not count."""

ALIKE = (
    "inputs of examples of a batch are alike (correlation {:.2f} of their {}, that of independent examples is 0), so "
    "that what they share counts as signal. " + CAUSES.format("may be")
)


class SharedInputs:
    """The inputs of the batches so far."""

    def __init__(self) -> None:
        self._batches: defaultdict[Any, list[Tensor]] = defaultdict(list)

    def add(self, inputs: Sequence[Tensor], units: Tensor) -> None:
        """Take notice of the inputs of a forward pass; ``units`` are places of its examples, ``[groups, members]``."""
        tensors = [tensor.detach() for tensor in inputs if has_rows(tensor, units.numel()) and tensor.numel()][:TENSORS]
        batches = self._batches[len(units), *((tensor.shape, tensor.dtype) for tensor in tensors)]
        if tensors and len(units) > 1 and len(batches) < MOST:
            batches.append(torch.cat([_moments(tensor, units) for tensor in tensors]))

    def told(self) -> str:
        """Return what examples of a batch share, in words; empty if nothing is found."""
        for (groups, *_), batches in self._batches.items():
            if len(batches) < FIRST:
                continue
            means, variances = torch.stack(batches).double().cpu().unbind(2)
            between = (means[2:] - 2 * means[1:-1] + means[:-2]).square() / 6
            within = (variances[2:] + 4 * variances[1:-1] + variances[:-2]) / 6
            shared = between - within / groups
            excess = shared - SHARE * within - (CONSTANT * means.mean(0)).square()
            blocks = torch.stack([block.mean(0) for block in excess.tensor_split(BLOCKS)])
            sure = (blocks.mean(0) > SURE * blocks.std(0) / BLOCKS**0.5).nonzero()
            if len(sure):
                place = int(sure[0])
                part = float(shared[:, place].mean())
                return ALIKE.format(part / (part + float(within[:, place].mean())), OF_EXAMPLE[place % 3])
        return ""


def _moments(tensor: Tensor, units: Tensor) -> Tensor:
    """Return mean and variance over groups of what is compared of an example, shape ``[3, 2]``."""
    values = as_real(tensor).reshape(units.numel(), -1)
    values = values[:, :: -(-values.shape[1] // COLUMNS)].float()
    of_examples = torch.stack([values.mean(1), values.square().mean(1), (values == 0).float().mean(1)])
    of_groups = of_examples[:, units.to(tensor.device)].mean(2)
    return torch.stack([of_groups.mean(1), of_groups.var(1)], 1)
