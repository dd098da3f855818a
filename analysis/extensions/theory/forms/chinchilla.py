r"""Chinchilla's form: Hoffmann et al. (2022, arXiv:2203.15556), equation 2, with :math:`D = B K`.

.. math:: L = E + A/N^\alpha + B/D^\beta

The batch size and the steps count by their product alone, so it has no critical batch size.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.arrays import Array
from analysis.estimate.forms import FORMS, LossForm, LossRuns, Reference, Terms


def terms(shape: Array, runs: LossRuns, reference: Reference, log_loss: Array) -> Terms:
    """f and g of ``ln alpha, ln beta``; sizes are those at the reference."""
    alpha, beta = np.exp(shape.T)[..., None]
    by_size = -alpha * np.log(runs.parameters / reference.parameters)
    by_data = -beta * np.log(runs.data / (reference.batch_size * reference.steps))
    f, g = np.exp(by_size), np.exp(by_data)
    zero = np.zeros_like(f)
    return Terms(f, g, np.stack([f * by_size, zero], axis=-1), np.stack([zero, g * by_data], axis=-1))


def named(at: Array, reference: Reference) -> dict[str, Array]:
    """The parameters as the paper has them; its B is called B_D, for it is no batch size."""
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
