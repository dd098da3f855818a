"""Draws that are known, made without any fit."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.estimate.definitions import CurveSample
from analysis.estimate.draws import BEYOND, Draws
from analysis.estimate.prior import STEP, StepsCurve

SIZES = np.exp(0.7 * np.arange(1, 11))
"""Nearly a factor 2 apart, and where curves are drawn, so that points between straight lines are exact."""

STEPS, EXAMPLES = 100.0, 6400.0
CRITICAL = EXAMPLES / STEPS

CHORD = 2e-3  # Relative, of a place on a curve between the points at which it is drawn


def sample(
    curve: Callable[[np.ndarray], np.ndarray], law: StepsCurve, sizes: np.ndarray = SIZES, target: float | None = None
) -> CurveSample:
    """Draws that are known: ``curve`` gives ``ln S`` at batch sizes ``[K]``, shape ``[R, K]``."""
    grid = math.log(sizes[0]) - BEYOND + STEP * np.arange(round((np.log(sizes[-1] / sizes[0]) + 2 * BEYOND) / STEP) + 1)
    curves = np.atleast_2d(curve(np.exp(grid)))
    draws = Draws(
        batch_sizes=sizes, log_steps=np.zeros(len(sizes)), log_sizes=grid, mean=curves.mean(axis=0), curves=curves,
        law=law, deviation=0.1, own=np.full(len(curves), 0.1), shared=0.0, freedom=1, seeds=np.ones(len(sizes)),
        table=np.zeros((len(sizes), 1)),
        labels=(0,),
        covariance=np.eye(len(sizes)),
    )  # fmt: skip
    return CurveSample(draws, dataclasses.replace(law, exponent=np.ones_like(law.exponent)), target)


def of_law(
    exponent: float = 1.0, steps: Any = STEPS, critical: Any = CRITICAL, sizes: np.ndarray = SIZES,
    target: float | None = None,
) -> CurveSample:  # fmt: skip
    """Power laws, one a row."""
    logs = np.atleast_1d(np.log(steps)), np.atleast_1d(np.log(critical))
    law = StepsCurve(*np.broadcast_arrays(*logs, exponent))
    return sample(law.log_steps, law, sizes, target)
