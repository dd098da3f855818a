"""How the examples of a forward pass fall into groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """Neighbouring groups of equal size.

    Attributes:
        start: first example.
        groups: number of groups.
        size: examples per group.
    """

    start: int
    groups: int
    size: int

    @property
    def stop(self) -> int:
        """One past the last example."""
        return self.start + self.groups * self.size


def split_examples(examples: int, groups: int) -> tuple[Run, ...]:
    """Split neighbouring examples into groups whose sizes differ by at most one, larger groups first.

    Args:
        examples: examples of a forward pass, at least 1.
        groups: wanted number of groups; one per example where there are fewer examples.
    """
    groups = min(groups, examples)
    size, larger = divmod(examples, groups)
    if larger == 0:
        return (Run(0, groups, size),)
    first = Run(0, larger, size + 1)
    return first, Run(first.stop, groups - larger, size)
