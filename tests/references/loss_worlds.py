"""Runs drawn from a known form of the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimate.forms import FORMS, LossRuns, Reference

TRUTH: dict[str, dict[str, float]] = {
    "nqs": {"E": 0.6, "P": 3.4, "p": 1.15, "gamma Q": 1.3, "q": 0.6, "gamma R": 12.0, "r": 0.9},
    "chinchilla": {"E": 1.7, "A": 400.0, "alpha": 0.34, "B_D": 400.0, "beta": 0.28},
    "kaplan": {
        "E": 1.0, "N_c": 1e5, "alpha_N": 0.25, "S_c": 300.0, "alpha_S": 0.5, "B_star": 3e4, "alpha_B": 0.25,
    },
}  # fmt: skip
SIZES, BATCH_SIZES, STEPS = (1e6, 4e6, 1.6e7, 6.4e7), (16, 64, 256, 1024), (300, 1000, 3000, 10000)


def coordinates(form: str, reference: Reference, **truth: float) -> np.ndarray:
    """Those of a form with these parameters."""
    t = TRUTH[form] | truth
    log_n, log_b, log_k, log_l = np.log(reference)
    if form == "nqs":
        excess = t["p"] - 1.0
        first = [t["E"], math.log(t["P"] / 2.0 / excess) - excess * log_n, math.log(t["gamma R"]) - log_b]
        return np.array([*first, math.log(excess), math.log(t["gamma Q"]), math.log(t["q"]), t["r"]])
    if form == "chinchilla":
        first = [t["E"], math.log(t["A"]) - t["alpha"] * log_n, math.log(t["B_D"]) - t["beta"] * (log_b + log_k)]
        return np.array([*first, math.log(t["alpha"]), math.log(t["beta"])])
    first = [t["E"], t["alpha_N"] * (math.log(t["N_c"]) - log_n), t["alpha_S"] * (math.log(t["S_c"]) - log_k)]
    slopes = [math.log(t["alpha_N"]), math.log(t["alpha_S"])]
    return np.array([*first, *slopes, math.log(t["B_star"]) - log_l / t["alpha_B"], 1.0 / t["alpha_B"]])


def made(
    form: str = "nqs",
    *,
    noise: float = 0.0,
    seed: int = 0,
    sizes: Sequence[float] = SIZES,
    batch_sizes: Sequence[float] = BATCH_SIZES,
    steps: Sequence[float] = STEPS,
    rows: Sequence[tuple[float, float, float]] | None = None,
    **truth: Any,
) -> LossRuns:
    """Every size with every batch size and number of steps, or ``rows``; each run is a group of its own."""
    places = rows or [(n, b, k) for n in sizes for b in batch_sizes for k in steps]
    n, b, k = np.array(places, dtype=float).T
    there = LossRuns(parameters=n, batch_size=b, steps=k, loss=np.full(len(n), 3.0), group=np.arange(len(n)))
    reference = Reference.of(there)
    loss = FORMS[form].loss(coordinates(form, reference, **truth)[None], there, reference)[0][0]
    noisy = loss * np.exp(noise * np.random.default_rng(seed).standard_normal(len(loss)))
    return LossRuns(parameters=n, batch_size=b, steps=k, loss=noisy, group=there.group)


def table(runs: LossRuns) -> pd.DataFrame:
    """As a person would write it."""
    columns = {"N": runs.parameters, "B": runs.batch_size, "K": runs.steps, "loss": runs.loss, "run": runs.group}
    return pd.DataFrame(columns)
