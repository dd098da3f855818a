r"""Chinchilla's form: Hoffmann et al. (2022, arXiv:2203.15556), equation 2, with :math:`D = B K`.

.. math:: L = E + A/N^\alpha + B/D^\beta

Batch size and steps enter only by their product, so it has no critical batch size.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.arrays import Array
from analysis.estimate.forms import FORMS, LossForm, LossRuns, Reference, Terms


def terms(shape: Array, runs: LossRuns, reference: Reference, log_loss: Array) -> Terms:
    """Return f and g for ``ln alpha, ln beta``; sizes of the terms are those at the reference."""
    alpha, beta = np.exp(shape.T)[..., None]
    by_size = -alpha * np.log(runs.parameters / reference.parameters)
    by_data = -beta * np.log(runs.data / (reference.batch_size * reference.steps))
    f, g = np.exp(by_size), np.exp(by_data)
    zero = np.zeros_like(f)
    return Terms(f, g, np.stack([f * by_size, zero], axis=-1), np.stack([zero, g * by_data], axis=-1))


def named(at: Array, reference: Reference) -> dict[str, Array]:
    """Return the parameters as in the paper; its B is called B_D, because it is not a batch size."""
    alpha, beta = np.exp(at[:, 3]), np.exp(at[:, 4])
    return {
        "E": at[:, 0],
        "A": np.exp(at[:, 1] + alpha * math.log(reference.parameters)),
        "alpha": alpha,
        "B_D": np.exp(at[:, 2] + beta * math.log(reference.batch_size * reference.steps)),
        "beta": beta,
    }


FORMS.register("chinchilla")(
    LossForm(
        title="Chinchilla",
        formula="E + A/N^alpha + B_D/D^beta",
        symbols=("E", "A", "B_D", "alpha", "beta"),
        distinct={"parameters": (3, "E, A and alpha"), "data": (3, "E, B_D and beta")},
        shapes=np.log([[1e-3, 1e-3], [5.0, 5.0]]),
        terms=terms,
        named=named,
    )
)
