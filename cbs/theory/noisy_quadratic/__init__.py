"""The noisy quadratic of Zhang et al. (2019, arXiv:1907.04164): what training it takes, in closed form."""

from cbs.theory.noisy_quadratic.model import NoisyQuadratic
from cbs.theory.noisy_quadratic.modes import METHODS, Modes, modes
from cbs.theory.noisy_quadratic.schedules import BestPieces, Stage, best_pieces, losses_along
from cbs.theory.noisy_quadratic.search import Best, best_settings, tuned

__all__ = [
    "METHODS",
    "Best",
    "BestPieces",
    "Modes",
    "NoisyQuadratic",
    "Stage",
    "best_pieces",
    "best_settings",
    "losses_along",
    "modes",
    "tuned",
]
