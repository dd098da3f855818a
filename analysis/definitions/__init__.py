"""Definitions of the critical batch size: one file each, found by name.

A definition looks at fitted curves, one measured or many resampled, so the interval of every definition is the
percentile interval of its values on the resamples, with no further code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from analysis.curves import Array
from cbs.errors import ConfigError
from cbs.registry import Registry


@dataclass(frozen=True)
class Sample:
    """What a definition may look at; ``R`` is 1 for the measured curve and the number of resamples otherwise.

    Attributes:
        batch_sizes: examples per step, shape ``[M]``, increasing.
        log_steps: natural log of the steps to target, shape ``[R, M]``, scattered around the measured steps (not around
            the fit).
        min_steps: fitted asymptote in optimizer updates, shape ``[R]``; 0 where only perfect scaling is seen.
        min_examples: fitted asymptote in examples, shape ``[R]``; 0 where only a plateau is seen.
        target: value of the metric the steps lead to; ``None`` where it is not known.
    """

    batch_sizes: Array
    log_steps: Array
    min_steps: Array
    min_examples: Array
    target: float | None = None


class Definition(Protocol):
    """A critical batch size. Implementations are frozen dataclasses whose fields are the options.

    ``samples`` are the curves of one optimizer at one or more targets, all with the same ``R`` and resampled alike;
    ``at`` is the one in question.
    """

    def __call__(self, samples: Sequence[Sample], at: int = 0) -> Array:
        """Critical batch sizes in examples, shape ``[R]``; 0 or infinity where the data do not bound it, NaN where it
        is not defined."""

    def remark(self, samples: Sequence[Sample], at: int = 0) -> str:
        """What has to be said about the value of the measured curve (``R`` = 1), such as that it lies at the edge of
        the measured batch sizes; empty if nothing."""


DEFINITIONS: Registry[type[Definition]] = Registry("critical batch size definition", "analysis.definitions")


def build(name: str, **options: Any) -> Definition:
    """The definition called ``name`` with its options.

    Raises:
        UnknownNameError: if there is none of this name.
        ConfigError: if it has no such option, or refuses the value.
    """
    kind = DEFINITIONS[name]
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"definition {name!r} has no option {option!r}; {has}")
    return kind(**options)


__all__ = ["DEFINITIONS", "Definition", "Sample", "build"]
