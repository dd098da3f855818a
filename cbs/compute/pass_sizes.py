"""Sizes of forward and backward passes: arithmetic without torch, also for the process that starts trials."""

import math


def halved(examples: int, most: int | None, too_large: int | None) -> int | None:
    r"""Return the largest pass to try after passes of ``too_large`` examples did not fit into memory.

    This is the first of :math:`m_0 = \min(B, most), m_{i+1} = \lceil m_i / 2 \rceil` that divides the step into passes
    below ``too_large``, or 1. It depends on the size of memory, not on which sizes were tried before. Where a batch
    schedule led to a pass of more than B examples that was too large, :math:`m_0` is that pass.

    >>> halved(64, most=None, too_large=64)
    32

    Args:
        examples: B, the number of examples in a step.
        most: configured limit; ``None`` for the whole batch at once.
        too_large: fewest examples known not to fit; ``None`` if none are known.

    Returns:
        The size, which is ``most`` where no change is needed.
    """
    if too_large is None or (most is not None and most < too_large):
        return most
    size = max(min(most or examples, examples), too_large)
    while size > 1 and micro_sizes(max(examples, size), size)[0] >= too_large:
        size = math.ceil(size / 2)
    return size


def micro_sizes(examples: int, most: int | None, wanted: int = 1) -> list[int]:
    """Return the sizes of the micro-batches of a step, as equal as possible and none above ``most``.

    >>> micro_sizes(10, most=4)
    [4, 3, 3]

    Args:
        examples: number of examples in the step.
        most: largest micro-batch; ``None`` for no limit.
        wanted: least number of micro-batches, if there are enough examples.
    """
    size = min(most or examples, examples)
    return even_sizes(examples, max(math.ceil(examples / size), min(wanted, examples)))


def even_sizes(examples: int, parts: int) -> list[int]:
    """Return the sizes of ``parts`` parts of this many examples, which differ by at most one, larger ones first."""
    return [examples // parts + (index < examples % parts) for index in range(parts)]
