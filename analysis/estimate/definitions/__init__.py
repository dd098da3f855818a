"""Definitions of the critical batch size: one file each, found by name.

A definition looks at fitted curves, one measured or many resampled, so the interval of every definition is the
percentile interval of its values on the resamples, with no further code. Some read the fitted curve, some the fitted
hyperbola, others the measured steps alone; the docstring of each says which.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Protocol

import numpy as np

from analysis.arrays import Array
from analysis.config import AnalysisConfig
from analysis.estimate.curves import StepsCurve
from cbs.errors import ConfigError
from cbs.registry import Registry

ROUNDING = 1e-9
"""Measured steps closer than this (in their logarithm) count as equal: taking logarithms and adding resampled noise of
zero moves them by about 1e-14."""


@dataclass(frozen=True)
class CurveSample:
    """What a definition may look at; ``R`` is 1 for the measured curve and the number of resamples otherwise.

    Attributes:
        batch_sizes: examples per step, shape ``[M]``, increasing.
        log_steps: natural log of the steps to target, shape ``[R, M]``, scattered around the measured steps (not around
            the fit).
        curve: fitted, shape ``[R]``.
        hyperbola: fitted with the exponent held at 1, shape ``[R]``.
        target: value of the metric the steps lead to; ``None`` where it is not known.
    """

    batch_sizes: Array
    log_steps: Array
    curve: StepsCurve
    hyperbola: StepsCurve
    target: float | None = None

    @property
    def log_examples(self) -> Array:
        """Natural log of the examples to the target, shape ``[R, M]``."""
        return np.asarray(self.log_steps + np.log(self.batch_sizes))


class Definition(Protocol):
    """A critical batch size. Implementations are frozen dataclasses whose fields are the options: switches, and numbers
    above 0, of which :data:`TOLERANCE` may be 0 and those without a default value ``None``.

    ``samples`` are the curves of one optimizer at one or more targets, resampled alike; ``at`` is the one in question.
    A curve through two batch sizes has no resamples, so ``R`` may differ between samples.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @abstractmethod
    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        """Critical batch sizes in examples, shape ``[R]``; 0 or infinity where the data do not bound it, NaN where it
        is not defined."""

    def remark(self, samples: Sequence[CurveSample], at: int = 0) -> str:
        """What has to be said about the value of the measured curve (``R`` = 1), such as that it lies at the edge of
        the measured batch sizes; empty if nothing."""
        return ""


TOLERANCE = "tolerance"

DEFINITIONS: Registry[type[Definition]] = Registry(
    "critical batch size definition", "analysis.estimate.definitions", derived_from=Definition
)


def build(name: str, **options: Any) -> Definition:
    """The definition called ``name`` with its options.

    Raises:
        ConfigError: if there is none of this name, it has no such option, or refuses the value.
    """
    kind = DEFINITIONS[name]
    usual = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for option, value in options.items():
        if option not in usual:
            has = f"its options are {', '.join(usual)}" if usual else "it has none"
            raise ConfigError(f"definition {name!r} has no option {option!r}; {has}")
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if isinstance(usual[option], bool):
            right, wanted = isinstance(value, bool), "true or false"
        elif option == TOLERANCE:
            right, wanted = number and value >= 0, "a number 0 or more"
        else:
            right, wanted = (value is None and usual[option] is None) or (number and value > 0), "a number above 0"
        if not right:
            raise ConfigError(f"definition {name!r}: {option} must be {wanted}, got {value!r}")
    return kind(**options)


def chosen(config: AnalysisConfig) -> dict[str, Definition]:
    """Every definition with the options that the configuration gives it; refuses what :func:`build` refuses."""
    for name in (config.definition, *config.options):
        build(name, **config.options.get(name, {}))
    return {name: build(name, **config.options.get(name, {})) for name in DEFINITIONS}


def symbol(name: str) -> str:
    """How the critical batch size of a definition is called in a heading: ``B_crit`` is that of ``pareto``."""
    return "B_crit" if name == "pareto" else f"B_{name}"


def math_symbol(name: str) -> str:
    r"""Likewise for LaTeX and the axes of a figure: ``$B_{\mathrm{overhead}}$``."""
    words = symbol(name).removeprefix("B_").replace("_", r"\ ")
    return rf"$B_{{\mathrm{{{words}}}}}$"


def crossing(sizes: Array, excess: Array, start: np.ndarray, end: np.ndarray, tolerance: float) -> Array:
    """Batch size between those of the indices ``start`` and ``end`` ``[R]`` where ``excess`` ``[R, M]``, linear in the
    log, is ``ln(1 + tolerance)``; that of ``start`` where both are one."""
    row, logs = np.arange(len(excess)), np.log(sizes)
    rise = np.where(start == end, np.inf, excess[row, end] - excess[row, start])
    share = (math.log1p(tolerance) - excess[row, start]) / rise
    return np.asarray(np.exp(logs[start] + share * (logs[end] - logs[start])))


def in_words(name: str, options: dict[str, Any]) -> str:
    """A definition with the options that have a value or are on: ``overhead (overhead 0.2, reference_batch 256)``."""
    given = [
        option if value is True else f"{option} {value:g}"
        for option, value in options.items()
        if value is not None and value is not False
    ]
    return f"{name} ({', '.join(given)})" if given else name
