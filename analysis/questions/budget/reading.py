"""What every run had reached when its examples were spent: one table of losses per batch size, optimizer and budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.estimate.across import OF_BUDGET
from analysis.estimate.objective import as_study, unit_of
from analysis.estimate.studies import FARTHEST, Study, one_study
from analysis.phrases import number, plural
from analysis.read.groups import Group
from analysis.read.results import Results
from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import called, parse_choice
from cbs.trial.record import TrialStatus

ALIKE = 0.01
"""Budgets that differ by less are one: each is met as closely as whole batches allow."""

_OF_A_BATCH = 0.55
"""Of a batch, by which a run may miss its budget, and two budgets be apart: half a one, and what rounding adds."""

_AT_PEAK = 0.999


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The runs of one optimizer at one budget.

    Attributes:
        name: of the optimizer, with the settings that tell it from others but not those that follow the budget.
        budget: examples.
        sign: 1 where less of the metric is better, else -1: a loss is the metric times this.
        scale: of :func:`analysis.estimate.objective.as_study`.
        studies: of losses, by increasing batch size; each has a winner.
        losses: shape ``[L, N]`` each.
        constant: whether learning rates were at their peak when the examples were spent, so that curves say what
            smaller budgets give; of an import, that nobody said otherwise.
        rows: the trial table of the group.
        curve: examples and loss of a row of it, all along.
    """

    group: Group
    name: str
    budget: float
    sign: float
    scale: tuple[float, float]
    studies: tuple[Study, ...] = field(repr=False)
    losses: tuple[Array, ...] = field(repr=False)
    constant: bool
    rows: pd.DataFrame = field(repr=False)
    curve: Callable[[int], tuple[Array, Array]] = field(repr=False)

    @property
    def sizes(self) -> Array:
        return np.array([study.batch_size for study in self.studies], dtype=float)

    def tuned_curve(self, study: Study) -> tuple[Array, Array]:
        """Examples, up to the budget, and the least over learning rates of the mean loss over seeds there, each curve
        as it was run; where an average falls below what follows, what follows counts."""
        grid = np.geomspace(self.budget / 64, self.budget, 97)
        best = np.full(len(grid), np.inf)
        for trials in study.trials:
            losses = []
            for row in trials[trials >= 0]:
                examples, values = self.curve(int(row))
                known = np.isfinite(values) & (examples > 0)
                if known.sum() > 1 and examples[known][-1] >= self.budget * (1 - ALIKE):
                    losses.append(np.interp(np.log(grid), np.log(examples[known]), values[known], left=np.inf))
            if losses and len(losses) == (trials >= 0).sum():
                best = np.minimum(best, np.mean(losses, axis=0))
        kept = np.isfinite(best)
        return grid[kept], np.maximum.accumulate(best[kept][::-1])[::-1]


def spent(results: Results, at: Sequence[float], notes: list[str]) -> list[Spent]:
    """The runs of every group at every budget; says what is left out.

    Args:
        at: budgets in examples, read off the curves of constant learning rates; none for where the runs end.

    Raises:
        ConfigError: if a schedule decays though ``at`` is given, or runs end at unlike budgets.
        ResultsError: if no run is at a budget.
    """
    for value in at:
        if not 0 < value < math.inf:
            raise ConfigError(f"--at takes examples, a number above 0, got {value:g}")
    owner, *columns = (results.evaluations[name].to_numpy(float) for name in ("trial", "step", "value", "lr"))

    def curves(row: int) -> tuple[Array, Array, Array]:
        first, last = np.searchsorted(owner, (row, row + 1))
        steps, values, lrs = (column[first:last] for column in columns)
        return steps, values, lrs

    found, reasons = [], []
    for index, group in enumerate(results.groups):
        rows = results.of_group(index)
        if "imported" in group.manifest and at:
            notes.append(f"{group.sweep}: how learning rates went is not known; --at takes them for constant")
        for budget in at or (None,):
            entry = _at_budget(group, rows, curves, budget, notes)
            if isinstance(entry, str):
                reasons.append(f"{group.optimizer}: {entry}")
            else:
                found.append(entry)
    if not found:
        raise ResultsError(f"no run at a budget: {'; '.join(dict.fromkeys(reasons))}")
    notes += dict.fromkeys(reasons)
    return found


def _at_budget(
    group: Group,
    rows: pd.DataFrame,
    curves: Callable[[int], tuple[Array, Array, Array]],
    at: float | None,
    notes: list[str],
) -> Spent | str:
    """The runs of one group at one budget, or why there are none."""
    sign = -1.0 if group.target.direction == "above" else 1.0
    ended = {row: float(rows.at[row, "final_step"]) * float(rows.at[row, "batch_size"]) for row in rows.index}
    whole = [row for row in rows.index if _ran_on(group, rows.at[row, "status"])]
    if at is None:
        if not whole:
            return "every run ended at its target or diverged; give --at for a budget that the runs passed"
        at = _common(group, rows, {row: ended[row] for row in whole})
    if at < rows["batch_size"].min():
        raise ConfigError(f"--at {number(at)} is less than one batch of {group.sweep}, of {rows['batch_size'].min()}")
    value, missing, off, decays = {}, {}, {}, False
    for row in rows.index:
        size, status = float(rows.at[row, "batch_size"]), TrialStatus(rows.at[row, "status"])
        steps, values, lrs = curves(row)
        if at < size:
            missing[row] = "the budget is less than one batch"
        elif ended[row] >= at - max(_OF_A_BATCH * size, ALIKE * at):
            if ended[row] > at + max(_OF_A_BATCH * size, ALIKE * at):
                value[row], near = _interpolated(steps, values, at / size)
                if not near:
                    missing[row] = "its evaluations lie too far apart there"
            elif status is not TrialStatus.DIVERGED:
                value[row] = float(values[-1])
                if abs(ended[row] / at - 1) > ALIKE:
                    off[int(size)] = ended[row] / at - 1
            peak, after = float(rows.at[row, "lr"]), min(int(np.searchsorted(steps, at / size)), len(lrs) - 1)
            decays |= bool(lrs[after] < _AT_PEAK * peak)
            if ended[row] > at * (1 + ALIKE) + size and lrs[after] < _AT_PEAK * peak:
                raise ConfigError(
                    f"--at {number(at)}: the learning rates of {group.optimizer} in {group.sweep} are not at their "
                    "peak there, and only constant ones say what a smaller budget gives; leave --at out or run each"
                )
        elif status in (TrialStatus.REACHED, TrialStatus.BUDGET_EXHAUSTED):
            missing[row] = "it ended at its target" if status is TrialStatus.REACHED else "it ended sooner"
    left_out = {int(rows.at[row, "batch_size"]): why for row, why in missing.items()}
    if left_out:
        why = "; ".join(dict.fromkeys(left_out.values()))
        sizes = ", ".join(map(str, sorted(left_out)))
        notes.append(
            f"{group.optimizer} at {number(at)} {group.example_unit}s: batch size {sizes} left out, as of "
            f"{plural(len(missing), 'run')} the loss there is not known: {why}"
        )
    if off:
        told = ", ".join(f"{100 * share:+.2g} % at batch size {size}" for size, share in sorted(off.items()))
        notes.append(f"{group.optimizer}: whole batches do not make up {number(at)} {group.example_unit}s: {told}")
    studies, tables = [], []
    for size, part in rows.groupby("batch_size", sort=True):
        study = one_study(group, int(size), part, group.target, np.full(len(part), np.nan))
        flat = [sign * value.get(row, math.nan) for row in study.trials.ravel()]
        losses = np.array(flat).reshape(study.trials.shape)
        if int(size) in left_out:
            continue
        if np.isfinite(losses).any():
            studies.append(study)
            tables.append(losses)
        else:
            notes.append(f"{group.optimizer}: at batch size {size} no run got as far as {number(at)} examples")
    if not studies:
        return f"no run got as far as {number(at)} {group.example_unit}s"

    def curve(row: int) -> tuple[Array, Array]:
        steps, values, _ = curves(row)
        return steps * float(rows.at[row, "batch_size"]), sign * values

    scale = unit_of(tables)
    return Spent(
        group=group,
        name=_name(group),
        budget=at,
        sign=sign,
        scale=scale,
        studies=tuple(as_study(study, table, scale) for study, table in zip(studies, tables, strict=True)),
        losses=tuple(tables),
        constant=not decays,
        rows=rows,
        curve=curve,
    )


def _ran_on(group: Group, status: str) -> bool:
    """Whether a run ended because its examples were spent."""
    return status == TrialStatus.BUDGET_EXHAUSTED or (status == TrialStatus.REACHED and not group.stops_at_target)


def _common(group: Group, rows: pd.DataFrame, ended: dict[int, float]) -> float:
    """The budget of runs that spent their examples; refused where it is not one."""
    sizes = {row: float(rows.at[row, "batch_size"]) for row in ended}
    near = {row: max(_OF_A_BATCH * sizes[row], ALIKE * examples) for row, examples in ended.items()}
    low, high = max(ended[row] - near[row] for row in ended), min(ended[row] + near[row] for row in ended)
    if low > high:
        least, most = min(ended.values()), max(ended.values())
        raise ConfigError(
            f"unlike budgets in {group.sweep}: runs of {group.optimizer} end after {number(least)} to "
            f"{number(most)} {group.example_unit}s; with constant learning rates give --at {least:g} or less"
        )
    # smaller batches meet a budget more closely
    return min(max(ended[min(ended, key=lambda row: sizes[row])], low), high)


def _interpolated(steps: Array, values: Array, step: float) -> tuple[float, bool]:
    """A curve at a step before its last one, linear in ln step between evaluations, and whether these are near
    enough."""
    after = int(np.searchsorted(steps, step * (1 - 1e-9)))
    if abs(steps[after] - step) < 1e-6 * step or after == 0:
        return float(values[after]), after > 0 or steps[0] > 0
    low, high = steps[after - 1], steps[after]
    if low <= 0 or high > FARTHEST * low:
        return math.nan, False
    share = math.log(step / low) / math.log(high / low)
    return float(values[after - 1] + share * (values[after] - values[after - 1])), True


def _name(group: Group) -> str:
    """The optimizer without what follows the budget."""
    try:
        choice = parse_choice(group.optimizer)
    except ConfigError:
        return group.optimizer
    kept = [(key, part) for key, part in sorted(choice.options.items()) if key.rpartition(".")[2] not in OF_BUDGET]
    return called(choice.name, kept)


def side_by_side(entries: Sequence[Spent]) -> Iterator[list[Spent]]:
    """Those of one workload, metric and budget, each set in the order of its first one.

    Raises:
        ConfigError: if there are several optimizers and no two at one budget.
    """
    scopes: list[list[Spent]] = []
    for entry in entries:
        for scope in scopes:
            first, alike = scope[0], abs(math.log(entry.budget / scope[0].budget)) < 2 * ALIKE
            if alike and _comparable(entry) == _comparable(first):
                scope.append(entry)
                break
        else:
            scopes.append([entry])
    names = {entry.name for entry in entries}
    if len(names) > 1 and len({_comparable(entry) for entry in entries}) == 1 and all(len(s) == 1 for s in scopes):
        told = ", ".join(f"{entry.name} {number(entry.budget)}" for entry in entries)
        raise ConfigError(
            f"unlike budgets in one comparison: {told} {entries[0].group.example_unit}s; with constant learning rates "
            "give a budget of all with --at"
        )
    yield from sorted(scopes, key=lambda scope: (_comparable(scope[0]), scope[0].budget))


def _comparable(entry: Spent) -> tuple[str, ...]:
    group = entry.group
    return group.workload, group.target.metric, group.target.direction, group.metric_unit, str(group.data_hash)
