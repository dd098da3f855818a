"""Check that the rows of a model's output depend on the examples that they are assigned to, and on no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cbs.errors import ConfigError, reason
from cbs.noise_scale.alike import alike
from cbs.noise_scale.cut import Call
from cbs.noise_scale.grouping import copies, mask, norms

FIRST = 4
"""Number of halves that are replaced in the first check, because only some of the examples may influence others."""


class Separation:
    """Check by repeated forward passes that examples do not influence each other.

    A pass is repeated three times, at the first check nine times: once unchanged, and otherwise with half of the
    examples replaced by copies of one of the others. The rows of the examples that stayed have to be the same, and
    those of the replaced ones have to change. Copies of a single example are used because they change relations such as
    which example is the best of the batch, which different examples need not.

    Attributes:
        why_not: why the latest pass could not be checked; empty if it could.
        copies: distance and correlation of similar examples in the latest pass, see
            :func:`~cbs.noise_scale.alike.alike`.
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
