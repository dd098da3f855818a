"""The noisy quadratic of Zhang et al. (2019, arXiv:1907.04164): how many steps training on it takes, in closed form."""

from extensions.theory.noisy_quadratic.curves import (
    OPTIMIZERS,
    Row,
    critical,
    curve,
    notebook_curve,
)
from extensions.theory.noisy_quadratic.model import METHODS, Modes, NoisyQuadratic, modes_of
from extensions.theory.noisy_quadratic.search import Best, best_settings, passages, tuned

__all__ = [
    "METHODS",
    "OPTIMIZERS",
    "Best",
    "Modes",
    "NoisyQuadratic",
    "Row",
    "best_settings",
    "critical",
    "curve",
    "modes_of",
    "notebook_curve",
    "passages",
    "tuned",
]
