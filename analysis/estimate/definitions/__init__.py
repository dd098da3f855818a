"""Definitions of the critical batch size, found by name.

A definition is a function of the draws of a curve (:mod:`analysis.estimate.draws`): its value is the median over them
and its interval their percentiles, without further code. The headline, ``least_product``, lies within the measured
batch sizes or says that it does not; definitions by an asymptote are extrapolated, and their remarks say so.
"""

import dataclasses
import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Protocol

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.draws import Draws
from analysis.estimate.prior import StepsCurve
from analysis.quantities import Array
from cbs.errors import ConfigError
from cbs.registry import Registry


@dataclass(frozen=True)
class CurveSample:
    """The input of a definition: ``R`` draws of one curve.

    Attributes:
        draws: the draws.
        hyperbola: draws of the curve if its exponent is 1, shape ``[R]``.
        target: value of the metric at the target; ``None`` if it is not known.
    """

    draws: Draws
    hyperbola: StepsCurve
    target: float | None = None

    @property
    def batch_sizes(self) -> Array:
        """Batch sizes that reached the target, in examples, shape ``[M]``, increasing."""
        return self.draws.batch_sizes

    @functools.cached_property
    def log_steps(self) -> Array:
        """Natural log of the steps to the target at these, shape ``[R, M]``."""
        return self.draws.drawn(self.batch_sizes)

    @property
    def log_examples(self) -> Array:
        """Natural log of the examples to the target, shape ``[R, M]``."""
        return np.asarray(self.log_steps + np.log(self.batch_sizes))


class Definition(Protocol):
    """A definition of the critical batch size.

    Implementations are frozen dataclasses whose fields are their options: booleans, or numbers above 0
    (:data:`TOLERANCE` may also be 0, and an option whose default is ``None`` may be ``None``). They are called with
    ``samples``, the curves of one optimizer at one or more targets, drawn together, and ``at``, the index of the curve
    in question.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    on_grid: ClassVar[bool] = False
    """Whether values are measured batch sizes: an end of an interval at the smallest or largest one is then open."""

    @abstractmethod
    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        """Return the critical batch sizes in examples, shape ``[R]``; 0 or infinity where the data do not bound it, NaN
        where it is undefined."""

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        """Return a remark on ``value``, the median of the draws, such as that it is extrapolated; empty if there is
        none."""
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


HEADLINE = "least_product"

EXTRAPOLATED = "extrapolated: an asymptote of the fitted law"


def symbol(name: str) -> str:
    """Return the name of a definition's critical batch size in headings; that of the headline is ``B_crit``."""
    return "B_crit" if name == HEADLINE else f"B_{name}"


def math_symbol(name: str) -> str:
    r"""Return the symbol of a definition for LaTeX and figure axes: ``$B_{\mathrm{overhead}}$``."""
    words = symbol(name).removeprefix("B_").replace("_", r"\ ")
    return rf"$B_{{\mathrm{{{words}}}}}$"


def in_words(name: str, options: dict[str, Any]) -> str:
    """Describe a definition with the options that are set: ``overhead (overhead 0.2, reference_batch 256)``; the
    headline with its own exchange rate is its name."""
    if name == HEADLINE and options == dataclasses.asdict(build(name)):  # type: ignore[call-overload]
        return name
    given = [
        option if value is True else f"{option} {value:g}"
        for option, value in options.items()
        if value is not None and value is not False
    ]
    return f"{name} ({', '.join(given)})" if given else name
