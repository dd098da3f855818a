r"""Kaplan's three terms: Kaplan et al. (2020, arXiv:2001.08361), equations 1.4, 1.6 and 5.4, with an irreducible loss.

.. math::

    L = E + (N_c/N)^{\alpha_N} + (S_c/S_{min})^{\alpha_S}, \qquad
    S_{min} = \frac{K}{1 + B_{crit}(L)/B}, \qquad B_{crit}(L) = B_*/L^{1/\alpha_B}
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from analysis.arrays import Array
from analysis.estimate.forms import FORMS, LossForm, LossRuns, Reference, Terms


def terms(shape: Array, runs: LossRuns, reference: Reference, log_loss: Array) -> Terms:
    """Return f and g for ``ln alpha_N``, ``ln alpha_S``, ln B_crit at the reference loss, and ``1/alpha_B``."""
    alpha_n, alpha_s = np.exp(shape[:, :2].T)[..., None]
    by_size = -alpha_n * np.log(runs.parameters / reference.parameters)
    log_loss = log_loss - np.log(reference.loss)
    ratio = shape[:, 2:3] - shape[:, 3:4] * log_loss - np.log(runs.batch_size)
    by_steps = -alpha_s * (np.log(runs.steps / reference.steps) - np.logaddexp(0.0, ratio))
    f, g, past = np.exp(by_size), np.exp(by_steps), alpha_s * expit(ratio)
    zero = np.zeros_like(f)
    return Terms(
        f,
        g,
        np.stack([f * by_size, zero, zero, zero], axis=-1),
        np.stack([zero, g * by_steps, g * past, -g * past * log_loss], axis=-1),
        -past * shape[:, 3:4],
    )


def named(at: Array, reference: Reference) -> dict[str, Array]:
    """Return the parameters as in the paper."""
    alpha_n, alpha_s = np.exp(at[:, 3]), np.exp(at[:, 4])
    with np.errstate(over="ignore", divide="ignore"):
        return {
            "E": at[:, 0],
            "N_c": reference.parameters * np.exp(at[:, 1] / alpha_n),
            "alpha_N": alpha_n,
            "S_c": reference.steps * np.exp(at[:, 2] / alpha_s),
            "alpha_S": alpha_s,
            "B_star": np.exp(at[:, 5] + at[:, 6] * np.log(reference.loss)),
            "alpha_B": 1.0 / at[:, 6],
        }


FORMS.register("kaplan")(
    LossForm(
        title="Kaplan, three terms",
        formula="E + (N_c/N)^alpha_N + (S_c/S_min)^alpha_S",
        symbols=("E", "N_c", "S_c", "alpha_N", "alpha_S", "B_star", "alpha_B"),
        distinct={
            "parameters": (3, "E, N_c and alpha_N"),
            "batch_size": (2, "B_star and alpha_B"),
            "steps": (3, "E, S_c and alpha_S"),
        },
        shapes=np.array(
            [[np.log(1e-3), np.log(0.02), np.log(1e-3), 0.0], [np.log(5.0), np.log(20.0), np.log(1e15), 50.0]]
        ),
        terms=terms,
        named=named,
        implicit=True,
    )
)
