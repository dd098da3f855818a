r"""Forms of the loss of a run with N parameters, K steps and batch size B, one file per form.

Every form is a floor plus two terms, each linear in its size,

.. math:: L = E + e^a f_s(N, B, K) + e^c g_s(N, B, K)

with a few shape parameters ``s``. If g depends on the loss itself, the equation is solved for the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.arrays import Array
from cbs.registry import Registry

_NEWTON = 80


@dataclass(frozen=True, kw_only=True)
class LossRuns:
    """Runs and their losses, each array of shape ``[n]``.

    Attributes:
        parameters: number of parameters N.
        batch_size: batch size B in examples or tokens per step.
        steps: number of optimizer updates K.
        loss: loss at the end, positive.
        group: integer that is equal for rows whose errors are dependent, such as those read from one run.
        weight: weight of every row in a fit, such as the number of seeds it averages; a scalar if all count equally.
    """

    parameters: Array
    batch_size: Array
    steps: Array
    loss: Array
    group: np.ndarray
    weight: Array | float = 1.0

    def of(self, rows: np.ndarray) -> LossRuns:
        """Return some of the runs."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return LossRuns(**{name: value[rows] if np.ndim(value) else value for name, value in values.items()})

    @property
    def data(self) -> Array:
        """D = B K, in the unit of the batch size."""
        return self.batch_size * self.steps


class Reference(NamedTuple):
    """Geometric means over the runs of a fit, at which the sizes of terms are given, so that they are meaningful."""

    parameters: float
    batch_size: float
    steps: float
    loss: float

    @classmethod
    def of(cls, runs: LossRuns) -> Reference:
        """Return the reference point of ``runs``."""
        return cls(*(float(np.exp(np.log(getattr(runs, name)).mean())) for name in cls._fields))


class Terms(NamedTuple):
    """Values of f and g for shape parameters ``[R, s]`` at n runs, ``[R, n]``, and their derivatives, ``[R, n, s]``."""

    f: Array
    g: Array
    f_slopes: Array
    g_slopes: Array
    g_log_slope: Array | float = 0.0
    """Derivative of ln g with respect to ln L, shape ``[R, n]``, if g depends on the loss."""


@dataclass(frozen=True, kw_only=True)
class LossForm:
    """A functional form of the loss.

    Attributes:
        title: name for headings.
        formula: formula as text.
        symbols: names of its parameters as in its paper.
        distinct: for an attribute of :class:`LossRuns`, the number of distinct values that is needed to separate some
            parameters, and those parameters in words.
        shapes: lower and upper bounds of the shape parameters, shape ``[2, s]``; an estimate at a bound is not
            determined.
        terms: function of shape parameters, runs, reference and ``ln L`` that returns :class:`Terms`.
        named: function of coordinates ``[R, 3 + s]`` and reference that returns the parameters by symbol, shape ``[R]``
            each.
        implicit: whether g depends on the loss.
    """

    title: str
    formula: str
    symbols: tuple[str, ...]
    distinct: dict[str, tuple[int, str]]
    shapes: Array
    terms: Callable[[Array, LossRuns, Reference, Array], Terms]
    named: Callable[[Array, Reference], dict[str, Array]]
    implicit: bool = False

    def loss(self, at: Array, runs: LossRuns, reference: Reference) -> tuple[Array, Array]:
        """Return the loss ``[R, n]`` and its derivatives ``[R, n, 3 + s]`` at coordinates ``E, a, c`` and shape
        parameters, shape ``[R, 3 + s]``.

        If the form is implicit, the solution starts from the loss of ``runs``.
        """
        floor, log_f, log_g, shape = at[:, :1], at[:, 1:2], at[:, 2:3], at[:, 3:]
        f_size, g_size = np.exp(log_f), np.exp(log_g)
        loss = np.broadcast_to(runs.loss, (len(at), len(runs.loss)))
        for _ in range(_NEWTON if self.implicit else 1):
            terms = self.terms(shape, runs, reference, np.log(loss))
            least = floor + f_size * terms.f
            value = least + g_size * terms.g
            if not self.implicit:
                loss = value
                break
            # L - value(L) is increasing and concave, so Newton steps approach from below after the first one
            step = (loss - value) / (1.0 - g_size * terms.g * terms.g_log_slope / loss)
            loss = np.maximum(loss - step, np.maximum(least, 1e-3 * loss))
            if np.all(np.abs(step) <= 1e-12 * loss):
                break
        ones = np.ones((*loss.shape, 1))
        slopes = [ones, (f_size * terms.f)[..., None], (g_size * terms.g)[..., None]]
        slopes.append(f_size[..., None] * terms.f_slopes + g_size[..., None] * terms.g_slopes)
        whole = np.concatenate(slopes, axis=-1)
        if self.implicit:
            whole = whole / (1.0 - g_size * terms.g * terms.g_log_slope / loss)[..., None]
        return loss, whole


FORMS: Registry[LossForm] = Registry("form of the loss", "analysis.estimate.forms", instance_of=LossForm)
