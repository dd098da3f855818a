"""Read what every run had reached when its examples were spent: losses per batch size, optimizer and budget."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.objective import Losses, common_budget, draw_losses, final_losses, loss_studies
from analysis.estimate.scopes import settings_of
from analysis.estimate.studies import FARTHEST, Study
from analysis.formatting import number, plural
from analysis.quantities import Array
from analysis.read.groups import EXECUTION, Group
from analysis.read.results import Results
from cbs.errors import ConfigError, ResultsError
from cbs.trial.record import AT_BUDGET, TrialStatus, leeway, read_off

# Share of its peak below which a learning rate has begun to decay; the rounding of a constant one stays above
_AT_PEAK = 0.999

_SHORT = {TrialStatus.REACHED: "it ended at its target", TrialStatus.BUDGET_EXHAUSTED: "it ended sooner"}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The runs of one optimizer at one budget.

    Attributes:
        group: the trials of the optimizer.
        budget: number of examples.
        studies: studies of losses, in order of increasing batch size; each has a winner.
        tables: losses of each study, shape ``[L, N]``.
        losses: draws of the losses at the best learning rates.
        constant: whether learning rates were at their peak when the examples were spent, so that curves also give
            smaller budgets; for imports, whether nothing says otherwise.
        curves: of every study whose learning rates were constant, examples up to the budget and losses there, see
            :func:`_tuned_curve`; empty where learning rates decay.
        rows: the trials of the group.
    """

    group: Group
    budget: float
    studies: tuple[Study, ...] = field(repr=False)
    tables: tuple[Array, ...] = field(repr=False)
    losses: Losses = field(repr=False)
    constant: bool
    curves: tuple[tuple[Array, Array], ...] = field(repr=False)
    rows: pd.DataFrame = field(repr=False)

    @property
    def trains(self) -> dict[str, Any]:
        """The optimizer, and the settings of the sweep that change what its runs train, but for the budget."""
        settings = {name: str(value) for name, value in settings_of(self.group).items()}
        unlike = (*EXECUTION, "evaluation", "prune_factor", "stops_at_target")
        alike = {name: settings[name] for name in settings if name.partition(".")[0] not in unlike}
        return {"": self.group.at_any_budget} | alike


def spent(results: Results, at: Sequence[float], config: AnalysisConfig, notes: list[str]) -> list[Spent]:
    """Return the runs of every group at every budget; notes say what is left out.

    Args:
        results: the results.
        at: budgets in examples to read from curves of constant learning rates; empty for the ends of the runs.
        config: configuration of the analysis.
        notes: list to which lines are added.

    Raises:
        ConfigError: if a schedule decays although ``at`` is given, or runs end at different budgets.
        ResultsError: if no run is at a budget.
    """
    for value in at:
        if not 0 < value < math.inf:
            raise ConfigError(f"--at takes examples, a number above 0, got {value:g}")
    for one, other in itertools.pairwise(sorted(at)):
        if other < one * (1 + 2 * AT_BUDGET):
            raise ConfigError(f"--at {one:g},{other:g}: these are one budget, as runs meet it by {AT_BUDGET:.0%}")
    entries, reasons = [], []
    for index, group in enumerate(results.groups):
        rows = results.of_group(index)
        if "imported" in group.manifest and at:
            notes.append(f"{group.sweep}: the learning-rate schedule is not known; --at takes it for constant")
        for budget in at or (None,):
            entry = _at_budget(results, group, rows, budget, config, notes)
            if isinstance(entry, str):
                reasons.append(f"{group.optimizer}: {entry}")
            else:
                entries.append(entry)
    if not entries:
        raise ResultsError(f"no run at a budget: {'; '.join(dict.fromkeys(reasons))}")
    notes += dict.fromkeys(reasons)
    return entries


def _at_budget(
    results: Results, group: Group, rows: pd.DataFrame, at: float | None, config: AnalysisConfig, notes: list[str]
) -> Spent | str:
    """Return the runs of one group at one budget, or the reason why there are none."""
    if at is None:
        reached = (rows["status"] == TrialStatus.REACHED) & (not group.stops_at_target)
        whole = rows[reached | (rows["status"] == TrialStatus.BUDGET_EXHAUSTED)]
        if whole.empty:
            return "every run ended at its target or diverged; give --at for a budget that the runs passed"
        at = _common(group, whole)
    if at < rows["batch_size"].min():
        raise ConfigError(f"--at {number(at)} is less than one batch of {group.sweep}, of {rows['batch_size'].min()}")
    value: dict[int, float] = {}
    off: dict[int, float] = {}
    missing: dict[int, list[str]] = {}
    decays = False
    of_runs = zip(rows.index, rows["batch_size"], rows["lr"], rows["status"], _ended(rows), strict=True)
    for row, size, peak, status, ended in of_runs:
        steps, values, lrs = results.curve(row)
        near, why = leeway(at, size), ""
        if at < size:
            why = "the budget is less than one batch"
        elif ended < at - near:
            why = _SHORT.get(status, "")
        else:
            read = float(values[-1]) if ended <= at + near else read_off(steps, values, at / size, FARTHEST)
            if read is None:
                why = "its evaluations lie too far apart there"
            elif ended > at + near or status != TrialStatus.DIVERGED:
                # what is no number or infinite is worse than all others, whatever the trial says
                value[row] = read if math.isfinite(read) else math.nan
                if ended <= at + near and abs(ended / at - 1) > AT_BUDGET:
                    off[size] = ended / at - 1
            lr = lrs[min(int(np.searchsorted(steps, at / size)), len(lrs) - 1)]
            decayed = bool(lr < _AT_PEAK * peak)
            decays |= decayed
            if decayed and ended > at * (1 + AT_BUDGET) + size:
                raise ConfigError(
                    f"--at {number(at)}: the learning rates of {group.optimizer} in {group.sweep} are not at their "
                    "peak there, and only constant ones show what a smaller budget gives; leave out --at or run each"
                )
        if why:
            missing.setdefault(size, []).append(why)
    budget = f"{number(at)} {group.example_unit}s"
    if missing:
        runs = list(itertools.chain.from_iterable(missing.values()))
        notes.append(
            f"{group.optimizer} at {budget}: batch size {', '.join(map(str, sorted(missing)))} left out: "
            f"{plural(len(runs), 'run')} without a loss there: {'; '.join(dict.fromkeys(runs))}"
        )
    if off:
        told = ", ".join(f"{100 * share:+.2g} % at batch size {size}" for size, share in sorted(off.items()))
        notes.append(f"{group.optimizer}: whole batches do not make up {budget}: {told}")
    studies, tables = [], []
    losses = group.target.sign * pd.Series(value, dtype=float)
    for size, _, study, table in final_losses(group, rows[~rows["batch_size"].isin(missing)], losses):
        if np.isfinite(table).any():
            studies.append(study)
            tables.append(table)
        else:
            notes.append(f"{group.optimizer}: at batch size {size} no run reached {number(at)} examples")
    if not studies:
        return f"no run reached {budget}"
    of_losses, scale = loss_studies(studies, tables)
    return Spent(
        group=group,
        budget=at,
        studies=tuple(of_losses),
        tables=tuple(tables),
        losses=draw_losses(of_losses, scale, config, name=group.optimizer),
        constant=not decays,
        curves=() if decays else tuple(_tuned_curve(results, study, at, group.target.sign) for study in of_losses),
        rows=rows,
    )


def _tuned_curve(results: Results, study: Study, budget: float, sign: float) -> tuple[Array, Array]:
    """Return examples, up to the budget, and the smallest mean loss over seeds of all learning rates there.

    Each curve is read as it was run; an average that falls below a later value is replaced by that value.
    """
    # sixteen points an octave, finer than runs are evaluated; no batch is of interest that costs 63/64 of its data
    grid = np.geomspace(budget / 64, budget, 97)
    best = np.full(len(grid), np.inf)
    for trials in study.trials:
        losses = []
        for row in trials[trials >= 0]:
            steps, values, _ = results.curve(int(row))
            examples, values = steps * study.batch_size, sign * values
            known = np.isfinite(values) & (examples > 0)
            if known.sum() > 1 and examples[known][-1] >= budget * (1 - AT_BUDGET):
                losses.append(np.interp(np.log(grid), np.log(examples[known]), values[known], left=np.inf))
        # a learning rate of which a run is missing would be judged by its lucky seeds
        if losses and len(losses) == (trials >= 0).sum():
            best = np.minimum(best, np.mean(losses, axis=0))
    measured = np.isfinite(best)
    return grid[measured], np.maximum.accumulate(best[measured][::-1])[::-1]


def _ended(rows: pd.DataFrame) -> pd.Series:
    """Return the number of examples that each run saw."""
    return rows["final_step"] * rows["batch_size"].astype(float)


def _common(group: Group, rows: pd.DataFrame) -> float:
    """Return the budget of runs that spent their examples; raise an error if they have different ones."""
    ended = _ended(rows)
    if (span := common_budget(ended.to_numpy(), rows["batch_size"].to_numpy())) is None:
        raise ConfigError(
            f"different budgets in {group.sweep}: runs of {group.optimizer} end after {number(ended.min())} to "
            f"{number(ended.max())} {group.example_unit}s; with constant learning rates give --at {ended.min():g} or "
            "less"
        )
    # smaller batches meet a budget more exactly
    low, high = span
    return min(max(float(ended[rows["batch_size"].idxmin()]), low), high)


def side_by_side(entries: Sequence[Spent]) -> Iterator[list[Spent]]:
    """Yield the entries of one workload, metric and budget, in the order of the first of each.

    Raises:
        ConfigError: if there are several optimizers, or settings of one, and no two at one budget.
    """
    scopes: list[list[Spent]] = []
    for entry in entries:
        same = [scope for scope in scopes if _comparable(scope[0]) == _comparable(entry)
                and abs(math.log(entry.budget / scope[0].budget)) < 2 * AT_BUDGET]  # fmt: skip
        if same:
            same[0].append(entry)
        else:
            scopes.append([entry])
    several = any(entry.trains != entries[0].trains for entry in entries)
    if several and len({_comparable(entry) for entry in entries}) == 1 and all(len(s) == 1 for s in scopes):
        told = ", ".join(f"{each.group.at_any_budget} in {each.group.sweep} {number(each.budget)}" for each in entries)
        raise ConfigError(
            f"different budgets in one comparison: {told} {entries[0].group.example_unit}s; with constant learning "
            "rates give a common budget with --at"
        )
    yield from sorted(scopes, key=lambda scope: (_comparable(scope[0]), scope[0].budget))


def _comparable(entry: Spent) -> tuple[str, ...]:
    group = entry.group
    return group.workload, group.target.metric, group.target.direction, group.metric_unit, str(group.data_hash)
