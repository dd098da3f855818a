r"""Detect what the examples of a batch share: one task, dataset or length, one mask, crop or depth drawn for all.

With a part :math:`m_t` of the gradient that all examples of batch t share, the signal within a batch is
:math:`|G|^2 + E|m|^2`. The product of the gradients of two batches is :math:`|G|^2`, as long as batches are independent
and the parameters rest. So it is compared with the signal, on a few entries of a few parameter tensors.

While parameters move, less of the gradient lasts from one step to the next for two more reasons: it oscillates, and
the noise of a step moves the parameters against the next gradient, which takes :math:`\eta\,tr(HP\Sigma)/B` from the
product for a step of size :math:`\eta`. In stable training :math:`\eta HP` is mostly below 1, and momentum spreads it
over many steps. Therefore, where parameters move, only a product that is far below the signal is told: the largest one
over some lags, after the noise of a batch times the share of the latest gradient in a step was taken from the signal,
and how much the products at these lags differ.

One masking ratio, length or data set shows in what is fed to the model long before, and also while parameters move.
Mean and mean square of an example's inputs and the share of zeros among them are compared between batches of one shape,
so are its single numbers, their squares, and products of two of them, which see a crop, a turn or an erased patch; and
the lengths of examples, without what they were filled up with, between batches of several shapes. For G independent
examples with variance v within batches, the means of batches have the variance v/G; what is more, they share. A batch
is compared with the mean of those just before and after it, so that a slow drift of the data does not count.

A turn or shift of textures that look the same after it shows only because there are few of them: of N images turned in
one of K ways, what a batch of B shares adds (1 - 1/K) B/N to v/G, in the inputs as in what any layer makes of them, but
up to six times that in the gradient, where a few images count most.
"""

import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cbs.noise_scale.cut import has_rows
from cbs.noise_scale.geometries import as_real
from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.moments import Moments

# Number of parameter tensors and largest number of entries of each that are compared; number of compared steps after
# which new ones are drawn
TENSORS, ENTRIES, LASTING = 2, 1024, 8

# Number of steps just before that a step is compared with; gradients mostly oscillate from one step to the next
LAGS = 2

# Least number of steps from one that is compared to the next, at first and later: each costs a third of a step of 2 ms.
# A meter that was told to measure every step compares every one, as measuring costs more than twice as much.
OFTEN, SELDOM = 8, 32

# Number of compared steps of the first test, repeated at every doubling; number of blocks that give its error
FIRST, BLOCKS = 16, 16

# Share of the signal that the product has to stay below, and by how many standard errors, where parameters rest and
# where they move.
AT_REST, MOVING = (0.95, 4.5), (2 / 3, 3.5)

CAUSES = (
    "So it is with one task, dataset or length per batch, with one mask, crop or depth drawn for all of it, and if "
    "examples are not in the first dimension: the noise scale {} too small, unless micro-batches or ranks that differ "
    "in this are compared ('accumulation', 'replicas')"
)
SHARED = (
    "examples of a batch share what other batches do not have, so that it counts as signal: products of successive "
    "steps' gradients are {:.0%} of the signal within batches. " + CAUSES.format("is")
)
INPUTS, COLUMNS = 4, 256  # Largest number of input tensors that are compared, and of numbers of an example in each

# What is compared of an example, the first so many as they are and the others column by column; and between batches of
# several shapes
OF_EXAMPLE, LENGTH = ("mean", "mean square", "share of zeros", "values", "squares", "products"), ("length",)
SINGLE = 3

# Number of batches of one shape from which on they are compared, and after which no more are
INPUT_BATCHES, MOST_BATCHES = 24, 1024

# Number of batches that wait to be looked at together, if an input of theirs has at most so many numbers
AT_ONCE, SMALL = 16, 16384

# How a batch is compared with those around it: squares add up to 1
AROUND = torch.tensor([-1.0, -1.0, 4.0, -1.0, -1.0], dtype=torch.float64) / 20**0.5

# Least correlation between examples of a batch that is told, and by how many standard errors, which `BLOCKS` blocks of
# batches give. Of what is compared column by column it is the correlation times the number of examples, which is what
# it adds to the variance of a batch's mean; one coin that turns a batch or not makes blocks differ much.
SHARES, SHARES_OF_COLUMNS = [(0.1, 3.0)], [(0.02, 5.0), (1.0, 3.0)]

# Change of a number that all examples of a batch have in common, relative to its root mean square, which does not count
CONSTANT = 1e-3

SAME = 1e-4  # Scatter of batches' means, relative to that of examples, which rounding explains
NORMED = (
    "inputs have the same {} in every batch, as if they were normalised over it: each example depends on the others, "
    "so a noise scale near the batch size is wrong; normalise by the statistics of many batches, or use 'accumulation'"
)


class Sketch(L2):
    """Squared norm of some entries of some parameter tensors, scaled so that its mean over draws is that of all.

    Args:
        parameters: the parameter tensors.

    Attributes:
        active: whether the step in progress is compared.
    """

    name = "sketch"

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._random, self.active = random.Random(0), False
        self.draw()

    def draw(self) -> None:
        """Draw other entries."""
        filled = [index for index, tensor in enumerate(self._parameters) if tensor.numel()]
        chosen = sorted(self._random.sample(filled, min(TENSORS, len(filled))))
        steps = {index: -(-self._parameters[index].numel() // ENTRIES) for index in chosen}
        self._entries = {index: slice(self._random.randrange(step), None, step) for index, step in steps.items()}

    def covers(self, index: int) -> bool:
        return self.active and index in self._entries

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        entries = self._entries[index]
        if entries.step == 1:
            return super().statistic(index, gradients)
        return super().statistic(index, gradients.flatten(1)[:, entries]).mul_(entries.step)

    def of(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Return the entries of tensors shaped like the parameters."""
        pieces = []
        for index, entries in self._entries.items():
            tensor = tensors[index]
            whole = as_real(self._parameters[index].detach() * 0 if tensor is None else tensor.detach()).reshape(-1)
            pieces.append(whole if entries.step == 1 else whole[entries])
        return torch.cat(pieces).float()

    @property
    def scales(self) -> Tensor:
        """What the entries are multiplied by in the product of two vectors, which is that of all entries then."""
        used = [
            (as_real(self._parameters[index].detach()).reshape(-1)[each], each) for index, each in self._entries.items()
        ]
        return torch.cat([torch.full_like(one, each.step, dtype=torch.float32) for one, each in used])


class SharedByBatch:
    """Test of what the examples of a batch share, on the steps that are measured and those before them.

    Attributes:
        sketch: the geometry in which the signal within batches is measured.
        told: what was found, in words; empty if nothing was.
        unseen: largest share of the signal that would not be told, according to the latest test; 1 before the first.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.sketch, self.told, self.unseen = Sketch(parameters), "", 1.0
        self._parameters = parameters
        self._past: deque[tuple[int, Tensor]] = deque(maxlen=LAGS)
        self._weights: Tensor | None = None
        self._waiting: list[tuple[Moments, Tensor, list[Tensor]]] = []
        self._rows: list[Tensor] = []
        self._counted, self._tested = 0, FIRST

    def add(self, step: int, scale: float, moments: Moments | None, *, last: bool) -> None:
        """Take notice of a step.

        Args:
            step: number of the step.
            scale: factor by which ``.grad`` is too large.
            moments: those of the sketch; ``None`` if the step is not compared with those before it.
            last: whether it or the next step is.
        """
        gradient = self.sketch.of([tensor.grad for tensor in self._parameters])
        gradient = gradient if scale == 1.0 else gradient / scale
        # How weights move is seen where new entries are compared for the first time.
        weights = self.sketch.of(self._parameters) if last and not self._waiting else None
        past = [earlier for _, earlier in self._past]
        move = None if weights is None or self._weights is None else weights - self._weights
        follows = [at for at, _ in self._past] == [*range(step - LAGS, step)]
        if moments is not None and follows and (move is not None or self._waiting):
            if move is not None:
                self._move = move, past[-1]
            self._waiting.append((moments, gradient, past))
        self._past.append((step, gradient))
        self._weights = weights
        if len(self._waiting) == LASTING:
            self._compare()
            self.sketch.draw()
            self._past.clear()

    def _compare(self) -> None:
        """Compare the steps of one draw with those before them, all at once, as single small operations are slow."""
        moments, gradients, pasts = zip(*self._waiting, strict=True)
        past, (moved, before) = torch.stack([torch.stack(each) for each in pasts]), self._move
        values = [
            torch.stack([one.signal.sum() for one in moments]),
            torch.stack([one.noise.sum() / one.sizes.big for one in moments]),
            (moved.sign() * before.sign()).mean().neg().expand(len(moments)),
            moved.abs().amax().expand(len(moments)),
        ]
        products = (past @ (torch.stack(gradients) * self.sketch.scales)[..., None])[..., 0]
        self._rows.append(torch.cat([torch.stack([value.float() for value in values], 1), products], 1))
        self._counted, self._waiting = self._counted + len(moments), []
        if self._counted >= self._tested:
            self._test(torch.cat(self._rows).double().cpu().numpy())
            self._tested *= 2

    def _test(self, rows: np.ndarray) -> None:
        rows = rows[np.isfinite(rows).all(1)]
        signal, noise, along, moved, products = *rows[:, :4].T, rows[:, 4:]
        if len(rows) < FIRST // 2 or self.told:
            return
        share, sure = MOVING if moved.any() else AT_REST
        if moved.any():
            latest = math.sin(math.pi / 2 * max(0.0, float(along.mean()))) ** 2
            lags = products.mean(0)
            products = products[:, int(lags.argmax())]
            lost = latest * noise + (lags.max() - lags.min())
        else:
            products, lost = products.mean(1), np.zeros(len(rows))
        excess = share * signal - products - lost
        means = np.array([block.mean() for block in np.array_split(excess, BLOCKS)])
        least = sure * means.std(ddof=1) / BLOCKS**0.5
        if means.mean() > least:
            self.told = SHARED.format(max(0.0, products.mean() / signal.mean()))
        # If a share f of the signal is shared, the product is 1 - f of it.
        hidden = 1 - share + (lost.mean() + least) / signal.mean()
        self.unseen = min(1.0, float(hidden)) if signal.mean() > 0 else 1.0


ALIKE = (
    "inputs of examples of a batch are alike (they share {:.0%} of the variance of their {} between batches, of which "
    "independent ones share nothing), so that what they share counts as signal. " + CAUSES.format("may be")
)


class SharedInputs:
    """The inputs of the batches so far, and whether those of a batch are more alike than independent examples are."""

    def __init__(self) -> None:
        self._batches: defaultdict[Any, list[list[Tensor]]] = defaultdict(list)
        self._waiting: defaultdict[Any, list[list[Tensor]]] = defaultdict(list)
        self._count: Counter[Any] = Counter()
        self._shapes: defaultdict[int, set[Any]] = defaultdict(set)

    def add(self, inputs: Sequence[Tensor], units: Tensor, *, alone: bool = True) -> None:
        """Take notice of the inputs of a forward pass; ``units`` are places of its examples, ``[groups, members]``, and
        several passes that are not ``alone`` may be over the same examples."""
        tensors = [tensor.detach() for tensor in inputs if has_rows(tensor, units.numel()) and tensor.numel()][:INPUTS]
        shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self._compare((len(units), OF_EXAMPLE, *shapes), tensors, units)
        self._shapes[len(units)].add((*shapes,))
        if alone and len(self._shapes[len(units)]) > 1:
            self._compare((len(units), LENGTH, len(tensors)), tensors, units)

    def _compare(self, key: Any, tensors: Sequence[Tensor], units: Tensor) -> None:
        if not tensors or len(units) < 2 or self._count[key] == MOST_BATCHES:
            return
        self._count[key] += 1
        rows = [_rows(tensor, units) for tensor in tensors]
        if key[1] is OF_EXAMPLE:
            rows = [_columns(each) for each in rows]
        waits = key[1] is OF_EXAMPLE and units.shape[1] == 1 and max(each.numel() for each in rows) <= SMALL
        self._waiting[key].append([each.clone() for each in rows] if waits else rows)
        if not waits or len(self._waiting[key]) == AT_ONCE:
            self._look(key, units)

    def _look(self, key: Any, units: Tensor) -> None:
        """Look at the batches that wait, all at once, as single small operations are slow."""
        of_examples, batches = _numbers if key[1] is OF_EXAMPLE else _lengths, zip(*self._waiting.pop(key), strict=True)
        self._batches[key].append([_moments(of_examples(torch.stack(each)), units) for each in batches])

    def told(self) -> str:
        """Return what examples of a batch share, in words; empty if nothing is found."""
        for key in [key for key in self._waiting if self._count[key] >= INPUT_BATCHES]:
            self._look(key, torch.arange(key[0])[:, None])
        for key, batches in self._batches.items():
            if self._count[key] < INPUT_BATCHES:
                continue
            for moments in zip(*batches, strict=True):
                told = _told(torch.cat(moments).double().cpu(), *key[:2])
                if told:
                    return told
        return ""


def _rows(tensor: Tensor, units: Tensor) -> Tensor:
    return as_real(tensor).reshape(units.numel(), -1)


def _columns(rows: Tensor) -> Tensor:
    """Return so many columns as are compared, of more than those pairs of neighbours."""
    step = -(-rows.shape[1] // COLUMNS)
    places = torch.arange(0, rows.shape[1] - 1, 2 * step, device=rows.device)
    return rows if step == 1 else rows[:, (places[:, None] + torch.arange(2, device=rows.device)).flatten()]


def _numbers(rows: Tensor) -> Tensor:
    """Return what :data:`OF_EXAMPLE` names, ``[batches, examples, numbers]``, of ``[batches, examples, columns]``."""
    values, columns = rows.float(), rows.shape[-1]
    squares, some = values.square(), torch.randperm(columns, generator=torch.Generator().manual_seed(0))
    zeros = 1 - values.sign().abs().mean(-1)  # Several times faster than a comparison
    single = torch.stack([values.mean(-1), squares.mean(-1), zeros], -1)
    products = [values * values.roll(1, -1), values * values[..., some.to(values.device)]]
    return torch.cat([single, values, squares, *products], -1)


def _told(moments: Tensor, groups: int, names: Sequence[str]) -> str:
    """Return what examples share; ``moments`` are mean and variance in every batch, ``[batches, numbers, 2]``."""
    means, variances = moments.unbind(2)
    # In a batch that is always the same, variances stay the same as well.
    still = (means.std(0) < SAME * variances.mean(0).sqrt()) & (variances.std(0) > CONSTANT * variances.mean(0))
    if still[:SINGLE].any():
        return NORMED.format(names[int(still.nonzero()[0])])
    between = (means.unfold(0, len(AROUND), 1) @ AROUND).square()
    within = variances.unfold(0, len(AROUND), 1) @ AROUND.square()
    constant = CONSTANT**2 * means.square().mean(0, keepdim=True)
    columns = (means.shape[1] - SINGLE) // 4
    widths = [1] if names is LENGTH else [1] * SINGLE + [columns, columns, 2 * columns]
    parts = [[part.sum(1) for part in each.split(widths, 1)] for each in (between, within, constant)]
    for place, (name, among, inside, least) in enumerate(zip(names, *parts, strict=True)):
        shared = among - inside / groups
        for share, sure in SHARES if place < SINGLE else SHARES_OF_COLUMNS:
            excess = shared - share * inside / (1 if place < SINGLE else groups) - least
            blocks = torch.stack([block.mean() for block in excess.tensor_split(BLOCKS)])
            if blocks.mean() > sure * blocks.std() / BLOCKS**0.5:
                return ALIKE.format(float(shared.mean() / among.mean()), name)
    return ""


def _lengths(rows: Tensor) -> Tensor:
    """Return numbers of columns from the first to the last that differs from what fills up, ``[batches, examples, 1]``,
    of rows ``[batches, examples, columns]``."""
    step = -(-rows.shape[-1] // COLUMNS)
    values = rows[..., ::step]
    places = torch.arange(1, values.shape[-1] + 1, device=values.device)
    last = ((values != values[..., -1:]) * places).amax(-1)
    first = ((values != values[..., :1]) * places.flip(0)).amax(-1)
    return ((last + first - len(places)).clamp(min=0) * float(step))[..., None]


def _moments(of_examples: Tensor, units: Tensor) -> Tensor:
    """Return mean and variance over groups of what is compared, ``[batches, numbers, 2]``."""
    alone = units.shape[1] == 1
    of_groups = of_examples if alone else of_examples[:, units.to(of_examples.device)].mean(2)
    means = of_groups.mean(1)
    # Ten times faster than torch.var_mean, which goes over the examples of every number by itself
    variances = (of_groups - means[:, None]).square().sum(1) / (len(units) - 1)
    return torch.stack([means, variances], -1)
