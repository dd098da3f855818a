"""Check that the rows of a model's output depend on the examples that they are assigned to, and on no others.

Examples that resemble those at a fixed distance in the batch, as copies and augmentations do, are found as well.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cbs.errors import ConfigError, reason
from cbs.noise_scale.cut import Call
from cbs.noise_scale.geometries import as_real
from cbs.noise_scale.grouping import copies, mask, norms

# Least correlation between examples at one distance from which they are reported as alike
LEAST = 0.1

SURE = 3.5  # Number of standard errors by which that correlation has to exceed those at other distances

# Number of standard errors by which the halves of a batch have to differ, in the cube root (Wilson and Hilferty)
SURER = 5.5

# Number of examples that are compared with all others; all pairs of a large batch would not fit into memory
SAMPLE = 256

# Most numbers of all examples together that are compared; from larger tensors so many columns are drawn at random
NUMBERS = 2**20


def sampled(rows: Tensor, most: int) -> Tensor:
    """Return at most ``most`` columns of rows, the same in every row, in float64 on the CPU."""
    values = as_real(rows).flatten(1)
    if values.shape[1] > most:
        values = values[:, torch.randint(values.shape[1], (most,), generator=torch.Generator().manual_seed(0))]
    return values.cpu().double()


def alike(rows: Tensor) -> tuple[int, float]:
    """Return the distance in places at which examples are alike, and their correlation.

    The distance is the offset between two rows of the batch: 1 where views of an example lie next to each other, a
    fraction of the batch where copies of the batch follow one another. It is -1 if the examples resemble those of the
    batch in reverse order, with which a batch is often mixed up. It is 1, too, if the halves of the batch differ, as
    where it is sorted. The result is ``(0, 0.0)`` if examples are alike at no distance.

    For numbers of mean 0 and variance 1, the squared distance of two rows with correlation r is 1 - r times that of
    uncorrelated rows. Every offset is compared with the average over all offsets.

    Args:
        rows: inputs or outputs of the batch, shape ``[examples, numbers]``.
    """
    # Too few pairs at a distance to tell copies from chance.
    if len(rows) < 8:
        return 0, 0.0
    rows = sampled(rows.detach(), NUMBERS // len(rows))
    spread = rows.std(0)
    # Numbers that are constant up to rounding have no correlation.
    rows = rows[:, (spread > 1e-6 * rows.abs().mean(0)) & spread.isfinite()]
    examples = len(rows)
    if not rows.shape[1]:
        return 0, 0.0
    rows = (rows - rows.mean(0)) / rows.std(0)
    # A random sample: evenly spaced examples may all be the first of their copies.
    some = torch.randperm(examples, generator=torch.Generator().manual_seed(0))[:SAMPLE].to(rows.device)
    apart = torch.cdist(rows[some], rows).square()
    apart = apart.gather(1, (some[:, None] + torch.arange(1, examples).to(some)) % examples)
    halves = (rows[: examples // 2].sum(0) - rows[examples // 2 :].sum(0)).square().sum() / rows.square().sum()
    # Wilson and Hilferty: the cube root of the mean of k squares is nearly normal with mean 1 - 2/(9k) and variance
    # 2/(9k). The scatter of squared distances tells k, as their numbers are not independent.
    spread = (apart.std() / apart.mean()).square() / 9
    if halves ** (1 / 3) > 1 - spread + SURER * spread.sqrt() and halves - 1 >= LEAST * examples:
        return 1, float(halves - 1) / examples
    lags = torch.arange(1, examples // 2 + 1, device=rows.device)
    mirrored = (rows - rows.flip(0)).square().sum(1)[: examples // 2]
    correlations = 1 - torch.cat([apart[:, : examples // 2].mean(0), mirrored.mean()[None]]) / apart.mean()
    pairs = torch.full_like(correlations, len(some))  # number of pairs of different examples behind every correlation
    pairs[:-1][2 * lags == examples] /= 2
    pairs[-1] = examples // 2
    lags = torch.cat([lags, lags.new_tensor([-1])])
    beyond = correlations - SURE * apart.std() / apart.mean() / pairs.sqrt()
    place = int(beyond.argmax())
    strongest = float(correlations[place])
    return (int(lags[place]), strongest) if strongest >= LEAST and float(beyond[place]) > 0 else (0, 0.0)


# Number of halves that are replaced in the first check, because only some of the examples may influence others
FIRST = 4


class Separation:
    """Check by repeated forward passes that examples do not influence each other.

    A pass is repeated three times, at the first check nine times: once unchanged, and otherwise with half of the
    examples replaced by copies of one of the others. The rows of the examples that stayed have to be the same, and
    those of the replaced ones have to change. Copies of a single example are used because they change relations such as
    which example is the best of the batch, which different examples need not.

    Attributes:
        why_not: why the latest pass could not be checked; empty if it could.
        copies: distance and correlation of similar examples in the latest pass, see
            :func:`~cbs.noise_scale.separation.alike`.
        undecided: whether the latest outputs were the same for all examples, as of a layer initialized at zero.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self.copies = (0, 0.0)
        self.undecided = False
        self._checks = 0

    def some(self, units: Tensor, *, half: bool = True) -> Tensor:
        """Return a mask of half of the groups, or of one, shape ``[examples]``; new ones in every check."""
        groups = torch.randperm(len(units), generator=torch.Generator().manual_seed(self._checks))
        return mask(units[groups[: len(groups) // 2 if half else 1]], units.numel())

    def verify(self, run: Callable[[Tensor, Tensor], Sequence[Call]], inputs: Sequence[Tensor], units: Tensor) -> None:
        """Check a forward pass.

        Args:
            run: repeats the pass with the mask of the examples that stay and the indices of those that replace the
                others, both of shape ``[examples]``; returns the calls from whose output the loss is computed.
            inputs: input tensors of the pass, with rows of examples.
            units: see :class:`~cbs.noise_scale.passes.Pass`.

        Raises:
            ConfigError: if the rows of one example depend on other examples, or on no example at all.
        """
        examples, members = units.numel(), units.shape[1]
        kept_ones = [torch.ones(examples, dtype=torch.bool)]
        for _ in range(1 if self._checks else FIRST):
            half = self.some(units)
            kept_ones += [half, ~half]
            self._checks += 1
        self.why_not, self.undecided = "", False
        first: Sequence[Call] = ()
        moved: set[int] = set()
        for number, kept in enumerate(kept_ones):
            try:
                calls = run(kept, copies(kept, units, self._checks))
            except Exception as error:  # noqa: BLE001 - a model may raise anything; its message is passed on
                self.why_not = f"the model does not run on other examples: {reason(error)}"
                return
            if number == 0:
                first, sizes = calls, [[norms(rows, examples) for rows in call.tensors] for call in calls]
                continue
            if [call.name for call in calls] != [call.name for call in first]:
                raise ConfigError(
                    "which modules of the model are called depends on the other examples of a batch; use the source "
                    "'accumulation'"
                )
            triples = enumerate(zip(first, calls, sizes, strict=True))
            moved |= {place for place, (old, new, size) in triples if _moved(old, new, size, kept)}
        for call in (call for place, call in enumerate(first) if place not in moved):
            self.undecided = all(bool((rows == rows[:1]).all()) for rows in call.tensors)
            if not self.undecided:
                raise ConfigError(
                    f"{_what(call.name)} does not depend on the examples, although its number of rows is that of the "
                    "examples or a multiple; use the source 'accumulation'"
                )
        outputs = [tensor for call in first for tensor in call.tensors]
        resembling = [alike(tensor.reshape(examples, -1)) for tensor in (*outputs, *inputs)] if members == 1 else []
        self.copies = max(resembling, key=lambda found: found[1], default=(0, 0.0))


def _moved(call: Call, other: Call, sizes: Sequence[Tensor], kept: Tensor) -> bool:
    """Return whether rows of replaced examples changed; raise if those of kept ones did, whose norms are ``sizes``."""
    moved, examples = False, len(kept)
    if [rows.shape for rows in call.tensors] != [rows.shape for rows in other.tensors]:
        raise ConfigError(_mixing(call.name))
    for old, new, size in zip(call.tensors, other.tensors, sizes, strict=True):
        rounding = torch.finfo(old.dtype).eps ** 0.5 if old.is_floating_point() or old.is_complex() else 0.0
        if bool((norms(old, examples, new) > rounding * size)[kept].any()):
            raise ConfigError(_mixing(call.name))
        moved = moved or bool((old != new).reshape(examples, -1)[~kept.to(old.device)].any())
    return moved


def _what(name: str) -> str:
    return f"the output of module {name!r}" if name else "the model's output"


def _mixing(name: str) -> str:
    return (
        f"{_what(name)} for one example depends on others: the model mixes examples, its first dimension is not that "
        "of the examples, or the weights changed before the step was measured; put the examples in the first dimension "
        "(batch_first=True), or use the source 'accumulation'"
    )
