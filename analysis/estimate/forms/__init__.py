r"""Forms of the loss of a run with N parameters, K steps and batch size B, one per file.

Every form is a floor and two terms that are linear in their size,

.. math:: L = E + e^a f_s(N, B, K) + e^c g_s(N, B, K)

with a few numbers ``s`` that give f and g their shape. A form whose g holds the loss itself is solved for it.
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
    """Runs and their losses, shape ``[n]`` each.

    Attributes:
        parameters: N.
        batch_size: B, examples or tokens per step.
        steps: K, optimizer updates.
        loss: at the end, positive.
        group: one number for all rows whose losses err together, such as those read from one run.
        weight: of every row in a fit, such as the number of seeds it is the mean of; one scalar where all count alike.
    """

    parameters: Array
    batch_size: Array
    steps: Array
    loss: Array
    group: np.ndarray
    weight: Array | float = 1.0

    def of(self, rows: np.ndarray) -> LossRuns:
        """Some of the runs."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return LossRuns(**{name: value[rows] if np.ndim(value) else value for name, value in values.items()})

    @property
    def data(self) -> Array:
        """D = B K, in the unit of the batch size."""
        return self.batch_size * self.steps


class Reference(NamedTuple):
    """Geometric means over the runs of a fit; sizes of terms are those here, so that they say something."""

    parameters: float
    batch_size: float
    steps: float
    loss: float

    @classmethod
    def of(cls, runs: LossRuns) -> Reference:
        """The reference of ``runs``."""
        return cls(*(float(np.exp(np.log(getattr(runs, name)).mean())) for name in cls._fields))


class Terms(NamedTuple):
    """f and g of the shapes ``[R, s]`` at n runs, ``[R, n]``, and their derivatives in the shapes, ``[R, n, s]``."""

    f: Array
    g: Array
    f_slopes: Array
    g_slopes: Array
    g_log_slope: Array | float = 0.0
    """Derivative of ln g in ln L, shape ``[R, n]``, where g holds the loss."""


@dataclass(frozen=True, kw_only=True)
class LossForm:
    """A form of the loss.

    Attributes:
        symbols: names of its parameters as its paper has them.
        distinct: attribute of :class:`LossRuns` -> distinct values it takes to tell the parameters in words apart.
        shapes: lowest and highest value of every shape, shape ``[2, s]``; an estimate at an end is not determined.
        terms: shapes, runs, reference, ``ln L`` -> :class:`Terms`.
        named: coordinates ``[R, 3 + s]``, reference -> parameters by symbol, shape ``[R]`` each.
        implicit: whether g holds the loss.
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
        """The loss ``[R, n]`` and its derivatives ``[R, n, 3 + s]`` in the coordinates ``E, a, c`` and the shapes,
        shape ``[R, 3 + s]``. The loss of ``runs`` is where the solution begins, if the form is implicit."""
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
            # L - value(L) is increasing and concave, so that Newton's steps come from below after the first
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
