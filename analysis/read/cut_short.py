"""Detect trials whose external program ended earlier than in comparable trials: an early stop, or an unreported
failure."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from cbs.trial.config import COMMAND
from cbs.trial.record import TrialStatus

_SOONER = 0.9
"""Fraction of the steps of the longest trial of a batch size below which a trial ended early; the last evaluations may
differ a little."""


def cut_short(trials: pd.DataFrame) -> Iterator[str]:
    """Yield a line for every sweep and optimizer with such trials.

    A program that decides itself when to end does so at the same step at every learning rate. If another trial trained
    longer, the budget of the shorter one was not spent. ``trials`` are those of :class:`analysis.read.results.Results`
    with their ``choice`` and ``config``.
    """
    longest = trials.groupby(["group", "batch_size"])["final_step"].transform("max")
    own = trials["config"].map(lambda config: config["workload"]["name"] == COMMAND)
    itself = (trials["status"] == TrialStatus.BUDGET_EXHAUSTED) & (trials["final_step"] < trials["max_steps"])
    short = trials.assign(longest=longest, called=trials["choice"].map(str))
    short = short[own & itself & (trials["final_step"] < _SOONER * longest)]
    for (sweep, optimizer), part in short.groupby(["sweep", "called"], sort=False):
        worst = part.loc[(part["final_step"] / part["longest"]).idxmin()]
        yield (
            f"sweep {sweep}, {optimizer}: in {len(part)} trials the program ended earlier than in others of "
            f"their batch size (at step {worst['final_step']} of {worst['longest']} at batch size {worst['batch_size']}"
            f" and learning rate {worst['lr']:.3g}): if it stopped early, or failed with exit code 0, these learning "
            "rates were not tried to their end"
        )
