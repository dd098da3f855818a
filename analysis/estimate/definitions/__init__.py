"""Definitions of the critical batch size: one file each, found by name.

A definition is computed from fitted curves, one measured or many resampled. The interval of every definition is
therefore the percentile interval of its values on the resamples, without further code. Some definitions use the fitted
curve, some the fitted hyperbola, others only the measured steps; the docstring of each says which.
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
"""Measured steps whose logarithms differ by less than this count as equal; rounding errors in the logarithm and in
adding resampled noise of zero are about 1e-14."""


@dataclass(frozen=True)
class CurveSample:
    """The input of a definition; ``R`` is 1 for the measured curve and the number of resamples otherwise.

    Attributes:
        batch_sizes: batch sizes in examples, shape ``[M]``, increasing.
        log_steps: natural log of the steps to target, shape ``[R, M]``, scattered around the measured steps (not around
            the fit).
        curve: fitted curve, shape ``[R]``.
        hyperbola: curve fitted with the exponent fixed at 1, shape ``[R]``.
        target: value of the metric at the target; ``None`` if it is not known.
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
    """A definition of the critical batch size.

    Implementations are frozen dataclasses whose fields are their options: booleans, or numbers above 0
    (:data:`TOLERANCE` may also be 0, and an option whose default is ``None`` may be ``None``). They are called with
    ``samples``, the curves of one optimizer at one or more targets, resampled together, and ``at``, the index of the
    curve in question. A curve through two batch sizes has no resamples, so ``R`` may differ between samples.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    on_grid: ClassVar[bool] = False
    """Whether values are measured batch sizes: an end of an interval at the smallest or largest one is then open."""

    @abstractmethod
    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        """Return the critical batch sizes in examples, shape ``[R]``; 0 or infinity where the data do not bound it, NaN
        where it is undefined."""

    def remark(self, samples: Sequence[CurveSample], at: int = 0) -> str:
        """Return a remark on the value of the measured curve (``R`` = 1), such as that it lies at the edge of the
        measured batch sizes; empty if there is none."""
        return ""


TOLERANCE = "tolerance"

DEFINITIONS: Registry[type[Definition]] = Registry(
    "critical batch size definition", "analysis.estimate.definitions", derived_from=Definition
)


def build(name: str, **options: Any) -> Definition:
    """Return the definition called ``name`` with its options.

    Raises:
        ConfigError: if there is no definition of this name, it has no such option, or it refuses the value.
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
    """Return every definition with its options from the configuration; raises what :func:`build` raises."""
    for name in (config.definition, *config.options):
        build(name, **config.options.get(name, {}))
    return {name: build(name, **config.options.get(name, {})) for name in DEFINITIONS}


def symbol(name: str) -> str:
    """Return the name of a definition's critical batch size in headings; that of ``pareto`` is ``B_crit``."""
    return "B_crit" if name == "pareto" else f"B_{name}"


def math_symbol(name: str) -> str:
    r"""Return the symbol of a definition for LaTeX and figure axes: ``$B_{\mathrm{overhead}}$``."""
    words = symbol(name).removeprefix("B_").replace("_", r"\ ")
    return rf"$B_{{\mathrm{{{words}}}}}$"


def crossing(sizes: Array, excess: Array, start: np.ndarray, end: np.ndarray, tolerance: float) -> Array:
    """Return the batch size at which ``excess`` ``[R, M]``, interpolated linearly in log batch size between the indices
    ``start`` and ``end`` ``[R]``, equals ``ln(1 + tolerance)``; the batch size at ``start`` where both are the same."""
    row, logs = np.arange(len(excess)), np.log(sizes)
    rise = np.where(start == end, np.inf, excess[row, end] - excess[row, start])
    share = (math.log1p(tolerance) - excess[row, start]) / rise
    return np.asarray(np.exp(logs[start] + share * (logs[end] - logs[start])))


def in_words(name: str, options: dict[str, Any]) -> str:
    """Describe a definition with the options that are set: ``overhead (overhead 0.2, reference_batch 256)``."""
    given = [
        option if value is True else f"{option} {value:g}"
        for option, value in options.items()
        if value is not None and value is not False
    ]
    return f"{name} ({', '.join(given)})" if given else name
