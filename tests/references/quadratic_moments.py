"""The moments of the gradients of a noisy quadratic, from its parameters."""

import torch

from cbs.workloads.noisy_quadratic import QuadraticModel


def true_moments(model: QuadraticModel) -> tuple[float, float]:
    """``(|G|^2, tr(Sigma))``: squared norm of the true gradient and trace of the covariance of the examples' gradients.

    Their ratio ``tr(Sigma) / |G|^2`` is the simple noise scale in examples.
    """
    with torch.no_grad():
        gradient = model.curvature.double() * model.theta.double()
        return float(gradient.square().sum()), float(model.noise.double().sum())
