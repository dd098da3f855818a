r"""Detect constants of a loss that were computed from its batch.

A mean over the terms that count, or over all weights of a batch, is a quotient whose divisor depends on every example.
So is a loss over its own detached value or over the variance of its targets, and targets or advantages that were
centred or scaled over the batch depend on it as well. No derivative shows it, as all of these are constants. Their
values do: a divisor is the sum of weights, it differs from batch to batch, or a constant has mean 0 or standard
deviation 1 in every batch.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cbs.noise_scale.shared_targets import ROUNDING, operations, saved

# Largest relative difference between a statistic of a batch and the number it was brought to, due to rounding
CLOSE = 1e-4

VARIES = 0.05  # Least standard deviation, relative to the mean, of a factor that is reported
TURNS = 2  # Number of times that a factor has to turn from rising to falling or back; schedules of a run hardly do so

SCALED = (
    "the loss is multiplied or divided by a constant that differs from batch to batch ({:.3g} to {:.3g} so far), as if "
    "computed from the batch (its own value, the variance of its targets, a count) or drawn for it: all examples share "
    "it, so a noise scale near the batch size is wrong; 'accumulation' sees it if each micro-batch has its own"
)
# Successive batches that need a statistic which rounded values may have by chance; of the others, two need it
AGAIN = {"median 0": 3, "smallest value 0 and largest 1": 3, "values in equal steps": 3}
RANKED = 6  # Least number of values in equal steps that are taken for ranks

NORMED = (
    "the loss holds a constant with {} over every batch, such as targets or advantages that were normalised over it: "
    "each example depends on the others, so a noise scale near the batch size is wrong; normalise by the statistics of "
    "many batches, pass groups= if it was done within groups, or use 'accumulation'"
)
BY_COUNTS = 5  # Successive batches in which whole numbers have to be counts: lengths may be by chance
COUNTED = (
    "the loss of an example is divided by how many of its batch are of its kind, as by the counts of classes: each "
    "example depends on the others, so a noise scale near the batch size is wrong; take the counts of many batches, or "
    "use 'accumulation'"
)


class BatchConstants:
    """The constants of the losses so far.

    Attributes:
        found: what was found, in words; empty if nothing was.
    """

    def __init__(self) -> None:
        self.found = ""
        self._factors: defaultdict[tuple[int, bool, int], list[tuple[float, int]]] = defaultdict(list)
        self._normed: defaultdict[str, set[float]] = defaultdict(set)
        self._counted = 0

    def add(
        self, losses: Sequence[Tensor], outputs: Sequence[GradientEdge], examples: int, *, weights_known: bool = False
    ) -> None:
        """Take notice of the loss of a batch with this number of examples; ``outputs`` are as in
        :func:`~cbs.noise_scale.shared_targets.saved`, and known weights of examples explain a divisor."""
        if self.found or examples < 3:
            return
        # A mean is over terms of single examples where there are as many of them as examples, and over equally many of
        # each where their number is always a multiple of that of the examples.
        terms = [float(math.prod(shape)) for node in operations(losses, outputs) if (shape := _averaged(node))]
        # Smoothed labels are multiplied by plain numbers.
        others = (getattr(node, "_saved_other", None) for node in operations(losses, outputs))
        factors = _factors(losses, outputs) + [one for one in others if isinstance(one, float)]
        kinds = () if weights_known else ((False, factors), (True, terms))
        places = [(each, *one) for each, many in kinds if len(many) < examples for one in enumerate(many)]
        for is_mean, place, factor in places:
            past = self._factors[len(places), is_mean, place]
            past.append((factor, examples))
            alike = is_mean and not any(value % number for value, number in past)
            # a count of examples is as good as a constant
            if not alike and all(_varies([value * number**power for value, number in past]) for power in (-1, 0, 1)):
                values = [value for value, _ in past]
                self.found = SCALED.format(min(values), max(values))
        held = [(name, value) for name, value in saved(losses, outputs) if not value.requires_grad]
        counts = [value for name, value in held if name.startswith(("Div", "Mul")) and _counts(value, examples)]
        # One number for all may be anything.
        self._counted = self._counted + any(value.min() < value.max() for value in counts) if counts else 0
        if self._counted >= BY_COUNTS:
            self.found = COUNTED
        whats = {what: value for _, value in held if (what := _normed(value, examples))}
        for what in AGAIN.keys() - whats.keys():
            self._normed[what].clear()
        for what, value in whats.items():
            batches = self._normed[what]
            batches.add(float(value.double().square().sum()) + float(value.flatten()[0]))
            if len(batches) >= AGAIN.get(what, 2):
                self.found = NORMED.format(what)


def _varies(factors: Sequence[float]) -> bool:
    """Return whether factors of successive losses go up and down by more than a schedule or a gradient scaler does."""
    values = torch.tensor(factors, dtype=torch.float64)
    rises = values.diff().sign()
    turns = int((rises[rises != 0].diff() != 0).sum())
    # from one power of two to another, as a gradient scaler goes, nothing changes
    apart = len({math.frexp(value)[0] for value in factors}) > 1 and float(values.std())
    return turns >= TURNS and apart > VARIES * abs(float(values.mean()))


def _averaged(node: Any) -> tuple[int, ...]:
    """Return the shape of the terms of which an operation takes the mean; empty if it takes none."""
    if "Mean" not in node.name() and getattr(node, "_saved_reduction", 0) != 1:
        return ()
    terms = getattr(node, "_saved_target" if node.name().startswith("NllLoss") else "_saved_self", None)
    shape: Any = getattr(node, "_saved_self_sym_sizes", None) or getattr(terms, "shape", ())
    return tuple(shape)


def _weights_of_targets(node: Any) -> Tensor:
    """Return what each target of a cross entropy counts: the weight of its class, or whether it is not ignored."""
    # autograd saves the ignored class, -100 by default, as an unsigned number.
    counted: Tensor = node._saved_target != (node._saved_ignore_index + 2**63) % 2**64 - 2**63
    classes = node._saved_weight
    return counted if classes is None else counted * classes[node._saved_target * counted]


def _factors(losses: Sequence[Tensor], outputs: Sequence[GradientEdge]) -> list[float]:
    """Return the constants, single numbers, that multiply or divide anything between outputs and losses."""
    found = []
    for node in operations(losses, outputs):
        if node.name().startswith(("Mul", "Div", "BinaryCrossEntropy")):
            values = (getattr(node, name, None) for name in ("_saved_self", "_saved_other", "_saved_pos_weight"))
            found += [float(one) for one in values if isinstance(one, Tensor) and _single(one)]
    return found


def _single(value: Tensor) -> bool:
    return value.numel() == 1 and not value.requires_grad and not value.is_complex() and bool(value.isfinite().all())


def _normed(value: Tensor, examples: int) -> str:
    """Return which statistic of a constant over the batch is a round number, if that of single examples is not."""
    if value.dtype not in (torch.float32, torch.float64) or not value.dim() or value.shape[0] % examples:
        return ""
    rows = value.detach().reshape(examples, -1).double()
    ordered = rows.flatten().unique()
    steps, all_differ = ordered.diff(), len(ordered) == rows.numel()
    if all_differ and len(ordered) >= RANKED and float(steps.max()) < (1 + CLOSE) * float(steps.min()):
        return "values in equal steps"
    if not rows.isfinite().all() or not (rows % 1).any():
        return ""
    own, size = rows.mean(1), rows.abs().mean()
    if abs(float(rows.mean())) < CLOSE * float(size) and float(own.abs().max()) > ROUNDING * float(size):
        return "mean 0"
    squares = rows.square().mean(1)
    statistics: dict[str, tuple[Tensor, Sequence[Tensor]]] = {  # of single examples, and over the batch
        "standard deviation 1": (squares, (rows.std(), rows.std(correction=0))),
        "mean square 1": (squares, (squares.mean().sqrt(),)),
        "mean size 1": (rows.abs().mean(1), (size,)),
        "mean 1": (own, (rows.mean(),)),
        "sum 1": (own, (rows.sum(),)),
    }
    for what, (of_rows, over_all) in statistics.items():
        differ = float(of_rows.std()) > ROUNDING * float(of_rows.abs().mean())
        if differ and any(abs(float(one) - 1) < CLOSE for one in over_all):
            return what
    if all_differ and own.std() > 0:
        if float(rows.median()) == 0:
            return "median 0"
        if ordered[[0, -1]].tolist() == [0, 1]:
            return "smallest value 0 and largest 1"
    return ""


def _counts(value: Tensor, examples: int) -> bool:
    """Return whether numbers of the examples, or one over them, are how often each occurs, as counts of classes are."""
    if value.numel() != examples or value.is_complex() or not (value > 0).all():
        return False
    numbers = value.detach().double().flatten()
    numbers = 1 / numbers if numbers.max() <= 1 else numbers
    each, times = numbers.round().unique(return_counts=True)
    return bool((numbers - numbers.round()).abs().max() < ROUNDING**2) and not (times % each).any()


def weights_divided_by(
    losses: Sequence[Tensor], outputs: Sequence[GradientEdge], examples: int, usual: set[float]
) -> Tensor | None:
    """Return the weights of examples relative to their mean if they differ and their sum divides a loss; else ``None``.

    Such are torch's means over targets with class weights or ignored ones, means over rows that a mask or
    indices select, and quotients whose divisor is the sum of a constant that has rows of examples. Targets, which are
    often whole numbers, may add up to a divisor by coincidence: their sum has to be none of ``usual``, the divisors of
    earlier losses, to which those of these are added.
    """
    held = [value for _, value in saved(losses, outputs) if not value.requires_grad and value.dim()]
    held += [~value for value in held if value.dtype == torch.bool]  # of what a mask fills, the rest counts
    divisors, means, summed = [1.0], list[Tensor](), list[Tensor]()  # 1 for weights that were divided before
    for node in operations(losses, outputs):
        name, other = node.name(), getattr(node, "_saved_other", None)
        averaged = _averaged(node)
        if name.startswith("NllLoss"):
            held.insert(0, 1.0 * _weights_of_targets(node))
            (means if averaged else summed).append(held[0])
            divisors += [float(held[0].sum())] * bool(averaged)
        elif averaged:
            divisors += [math.prod(averaged), *(number for number in averaged[:1] if number % examples)]
        elif name.startswith("Index"):
            held += _selected(node, examples)
        elif name.startswith(("Div", "Mul")) and isinstance(other, Tensor) and not other.dim() and float(other):
            number = float(other) if name.startswith("Div") else 1 / float(other)
            divisors += [number] * bool(number % examples)  # not a mean over examples
    new = [each for each in divisors if usual and each % examples and each not in usual]
    usual.update(divisors)
    for value in held:
        if value.numel() % examples or (not value.is_floating_point() and value.max() > 1):
            continue
        weights = value.reshape(examples, -1).double().sum(1)
        total, apart = float(weights.sum()), float(weights.max() - weights.min())
        if not apart > ROUNDING * total / examples > 0:
            continue
        above = any(value is one for one in summed) and max(divisors) > total  # the sum over a whole step
        known = divisors if (value.double() % 1).any() else new
        if above or any(value is one for one in means) or any(abs(each / total - 1) < ROUNDING**2 for each in known):
            return weights / weights.mean()
    return None


def weights_over_step(
    passes: Sequence[tuple[dict[Any, float], set[tuple[Any, float]], int]], ranks: bool
) -> Tensor | None:
    """Return the weights of passes relative to those of their examples, where their sum divides the loss of each.

    Args:
        passes: of every pass the sums and divisors in its loss, see :func:`sums_and_divisors`, and its examples.
        ranks: whether there are other passes on other ranks, so that the divisor may be larger.
    """
    if len(passes) < 2:
        return None
    examples = torch.tensor([number for *_, number in passes], dtype=torch.float64)
    divisors = set.intersection(*(each for _, each, _ in passes))
    for key in set.intersection(*({*sums} for sums, *_ in passes)):
        weights = torch.tensor([sums[key] for sums, *_ in passes], dtype=torch.float64)
        total = float(weights.sum())
        mine = [one for whose, one in divisors if whose in (None, key) and total > 0]
        if any(abs(one / total - 1) < ROUNDING**2 or (ranks and one > total) for one in mine):
            relative = weights / examples
            if float(relative.std()) > ROUNDING * float(relative.mean()):
                return relative * (examples.sum() / total)
    return None


def sums_and_divisors(
    losses: Sequence[Tensor], outputs: Sequence[GradientEdge], examples: int
) -> tuple[dict[Any, float], set[tuple[Any, float]]]:
    """Return what a loss may sum over, as the sum of weights of its terms under a name, and what it is divided by, each
    with the name of the only sum that it may divide, ``None`` if any."""
    sums: dict[Any, float] = {}
    factors = [value for one in _factors(losses, outputs) if one for value in (one, 1 / one)]
    # Rounded, so that one divisor in several dtypes is one member of the set.
    divisors: set[tuple[Any, float]] = {(None, round(value, 6)) for value in factors if value > 1}
    for node in operations(losses, outputs):
        name, shape = node.name(), getattr(node, "_saved_self_sym_sizes", None)
        summed, terms = getattr(node, "_saved_reduction", 0) == 2, float(math.prod(_averaged(node) or [0]))
        key = name, len(sums)
        if name.startswith("NllLoss") and (summed or terms):
            sums[key] = float(_weights_of_targets(node).sum())
        elif terms:
            sums[key] = terms
        elif name.startswith("Sum") and shape:
            sums[key] = float(math.prod(shape))
        elif summed and isinstance(getattr(node, "_saved_self", None), Tensor):
            sums[key] = float(node._saved_self.numel())
        if terms:  # a mean times the share of its terms is a sum
            divisors |= {(key, round(sums[key] * value, 2)) for value in factors}
    for name, value in saved(losses, outputs):
        if not value.requires_grad and value.dim() and not value.numel() % examples and value.dtype != torch.long:
            sums[name, value.dtype, len(sums)] = float(value.double().sum())
    return sums, divisors


def _selected(node: Any, examples: int) -> list[Tensor]:
    """Return how many of the rows of every example an operation takes by their numbers; empty if it does not."""
    indices = getattr(node, "_saved_indices", None) or [getattr(node, "_saved_index", None)]
    rows = (getattr(node, "_saved_self_sym_sizes", None) or [0])[0]
    first = indices[0]
    if not isinstance(first, Tensor) or first.dtype != torch.long or rows % examples or not rows:
        return []
    return [torch.bincount(first.flatten() % rows // (rows // examples), minlength=examples).double()]
