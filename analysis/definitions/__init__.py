"""Definitions of the critical batch size: one file each, found by name.

A definition is a function of a fitted curve, or of many at once, so the interval of every definition is the percentile
interval of its values on the resamples, with no further code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from analysis.curves import Array
from cbs.registry import Registry


@dataclass(frozen=True)
class Sample:
    """What a definition may look at; ``R`` is 1 for the measured curve and the number of resamples otherwise.

    Attributes:
        batch_sizes: examples per step, shape ``[M]``, increasing.
        log_steps: natural log of the steps to target, shape ``[R, M]``.
        min_steps: fitted asymptote in optimizer updates, shape ``[R]``; 0 where only perfect scaling is seen.
        min_examples: fitted asymptote in examples, shape ``[R]``; 0 where only a plateau is seen.
    """

    batch_sizes: Array
    log_steps: Array
    min_steps: Array
    min_examples: Array


class Definition(Protocol):
    """A critical batch size."""

    def __call__(self, sample: Sample) -> Array:
        """Critical batch sizes in examples, shape ``[R]``; 0 or infinity where the data do not bound it."""


DEFINITIONS: Registry[Definition] = Registry("critical batch size definition", "analysis.definitions")

__all__ = ["DEFINITIONS", "Definition", "Sample"]
