"""Trials whose batch size changed during the run; they are not points of a curve of steps against batch size."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.read.groups import UNSHOWN, grouped, without_duplicates
from cbs.registry.choices import Choice, parse_choice


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """Trials under one batch schedule that differ only in learning rate, first batch size and seed.

    Attributes:
        choice: the schedule with its options.
        reference: index of the group of trials that differ from these only in having no schedule; ``None`` if there are
            none.
        trials: one row per trial, as :attr:`analysis.read.results.Results.trials` without ``group``, with the
            evaluation curve in ``steps``, ``examples``, ``lrs`` and ``values``.
    """

    choice: Choice
    reference: int | None
    trials: pd.DataFrame


def with_schedule(every: pd.DataFrame, constant: pd.DataFrame, notes: list[str]) -> list[Scheduled]:
    """Return the trials with a batch schedule, by schedule, with the group that differs only in having none."""
    without = [{key: part for key, part in config.items() if key != "batch_schedule"} for config in every["config"]]
    codes, _ = grouped(every.assign(config=without))
    # in the same order: the constant trials are those of ``every`` without a schedule
    pairs = pd.DataFrame({"code": codes[every["batch_schedule"].isna()], "group": constant["group"].to_numpy()})
    of_code = {code: part.iloc[0] for code, part in pairs.groupby("code")["group"] if part.nunique() == 1}
    rows = every.assign(reference=[of_code.get(code, -1) for code in codes], group=codes)
    rows = rows[rows["batch_schedule"].notna()]
    notes.append(
        f"{len(rows)} trials with a batch schedule are not points of a curve of steps against batch size and are left "
        "out of it; 'cbs schedule judge' judges them"
    )
    scheduled = []
    for (_, text), part in rows.groupby(["group", "batch_schedule"], sort=False):
        kept = without_duplicates(part.assign(group=0), notes)
        reference = int(kept["reference"].iloc[0])
        scheduled.append(
            Scheduled(
                choice=parse_choice(str(text)),
                reference=None if reference < 0 else reference,
                trials=kept.drop(columns=["group", "reference", *UNSHOWN]),
            )
        )
    return scheduled
