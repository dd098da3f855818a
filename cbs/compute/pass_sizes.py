"""How many examples a forward and backward pass holds: arithmetic, also for who hands out trials and needs no torch."""

from __future__ import annotations

import math


def halved(examples: int, most: int | None, too_large: int | None) -> int | None:
    r"""Largest pass to try after a pass of so many examples was too large.

    The first of :math:`m_0 = \min(B, most), m_{i+1} = \lceil m_i / 2 \rceil` that cuts the step into passes below
    ``too_large``, or 1: it depends on what memory holds, not on which sizes were tried before. Where a batch schedule
    made a pass of more than B examples too large, :math:`m_0` is that pass.

    Args:
        examples: B, of a step.
        most: as configured; ``None`` for the whole batch at once.
        too_large: fewest examples known not to fit; ``None`` for none.

    Returns:
        ``most`` where it need not change.
    """
    if too_large is None or (most is not None and most < too_large):
        return most
    size = max(min(most or examples, examples), too_large)
    while size > 1 and micro_sizes(max(examples, size), size)[0] >= too_large:
        size = math.ceil(size / 2)
    return size


def micro_sizes(examples: int, most: int | None, wanted: int = 1) -> list[int]:
    """Sizes of the micro-batches of a step: none above ``most``, and at least ``wanted`` where there are as many
    examples, as equal as can be."""
    size = min(most or examples, examples)
    return even_sizes(examples, max(math.ceil(examples / size), min(wanted, examples)))


def even_sizes(examples: int, parts: int) -> list[int]:
    """Sizes of ``parts`` parts of so many examples that differ by at most one, larger ones first."""
    return [examples // parts + (index < examples % parts) for index in range(parts)]
