"""Read results from disk into two tidy tables, and groups of trials that may be compared with one another."""

import functools
import itertools
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.quantities import Array
from analysis.read.cells import LARGEST
from analysis.read.doubtful import cut_short, shared_runs, without_copies
from analysis.read.groups import (
    AXES,
    UNSHOWN,
    Group,
    Scheduled,
    as_text,
    grouped,
    of_training,
    warmup,
    warmup_steps,
    with_schedule,
    with_stated,
    without_duplicates,
)
from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import Choice, value_text
from cbs.trial.parent import Parent
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store, find_sweeps
from cbs.trial.target import Target
from cbs.trial.trial_files import METRIC, read_record

# Columns of a record that are not metrics, or are that of the target, which has a name of its own
_NO_METRIC = ("step", "examples", "lr", "value")

# Number of records read by one thread at a time; distributing them one by one would cost a third of the time
_CHUNK = 64


@dataclass(frozen=True)
class Results:
    """All trials at a path.

    Attributes:
        trials: one row per trial: ``sweep, group`` (index into ``groups``), ``trial_id, lr, batch_size, seed, status,
            final_step, max_steps, message, warmup_steps, folder, tuned`` (as in
            :attr:`analysis.estimate.studies.Study.tuned`), ``final_metrics`` (last values of further metrics).
        evaluations: one row per evaluation: ``trial`` (row of ``trials``), ``step, value, lr``; ordered by the first
            two.
        groups: the groups.
        notes: what was left out, one line each.
        scheduled: trials with a batch schedule, which are in none of the other fields.
    """

    trials: pd.DataFrame
    evaluations: pd.DataFrame
    groups: list[Group]
    notes: list[str]
    scheduled: list[Scheduled] = field(default_factory=list)

    def of_group(self, group: int) -> pd.DataFrame:
        """Return the trials of one group."""
        return self.trials[self.trials["group"] == group]

    def ends_alone(self, group: int) -> bool:
        """Return whether the runs of an imported group have one evaluation each, so that no steps to a target are
        known."""
        if "imported" not in self.groups[group].manifest:
            return False
        return bool(self._later[self.trials["group"].to_numpy() == group].max(initial=0) == 1)

    @functools.cached_property
    def _later(self) -> np.ndarray:
        """Number of evaluations of every trial after its first step."""
        return np.bincount(self.evaluations["trial"][self.evaluations["step"] > 0], minlength=len(self.trials))

    def curve(self, trial: int) -> tuple[Array, Array, Array]:
        """Return steps, values and learning rates at the evaluations of one trial."""
        trials, steps, values, lrs = self._columns
        own = slice(*np.searchsorted(trials, (trial, trial + 1)))
        return steps[own], values[own], lrs[own]

    @functools.cached_property
    def _columns(self) -> list[Array]:
        """Trials, steps, values and learning rates of all evaluations; to take a column costs more than a search."""
        return [self.evaluations[name].to_numpy(float) for name in ("trial", "step", "value", "lr")]

    @functools.cached_property
    def ends(self) -> pd.Series:
        """The value of the last evaluation after the first step of every trial that has one, by its row."""
        later = self.evaluations[self.evaluations["step"] > 0]
        return later.drop_duplicates("trial", keep="last").set_index("trial")["value"]


def load(*paths: str | os.PathLike[str], metric: str | None = None) -> Results:
    """Read one sweep, or all sweeps of a folder, from one or several paths.

    If a trial appears twice (same group, learning rate, batch size and seed; the runs differ in budget or in how they
    were executed) it counts once: the run with a final status is taken, or else the one with more steps.

    Args:
        paths: paths of sweeps or folders of sweeps.
        metric: metric to read, among those that the trials recorded; ``None`` for the target's.

    Raises:
        ConfigError: if a sweep is given twice.
        ResultsError: if a sweep has no such metric, nothing is found, or a file is missing, damaged, of another kind or
            of another schema version.
    """
    every, notes = read_trials(*paths, metric=metric)
    branches = are_branches(every)
    if branches.any():
        notes.append(
            f"{branches.sum()} branches from checkpoints are not points of a curve of steps against batch size and are "
            "left out of it; 'cbs local' compares them"
        )
        if branches.all():
            raise ResultsError(f"{', '.join(map(str, paths))}: {notes[-1]}; also run a sweep from the start")
        every = every[~branches].reset_index(drop=True)
    scheduled = every["batch_schedule"].notna()
    trials = every[~scheduled].reset_index(drop=True)
    if trials.empty:
        raise ResultsError(
            f"{', '.join(map(str, paths))}: every trial has a batch schedule, so there is no curve of steps against "
            "batch size; also run the sweep without --schedule"
        )
    trials["group"], groups = grouped(trials)
    if metric is not None:
        said = trials["directions"].map(lambda directions: directions.get(metric)).groupby(trials["group"]).first()
        groups = [group.read_by(metric, said[index] or "below") for index, group in enumerate(groups)]
    apart = with_schedule(every, trials, notes) if scheduled.any() else []
    notes += dict.fromkeys(
        f"sweep {group.sweep}: its trials continued to {target}: see --target {target.metric}"
        for group in groups
        for target in group.further_targets
        if not group.beside
    )
    kept = without_copies(without_duplicates(trials, notes), notes)
    notes += shared_runs(kept)
    notes += cut_short(kept)
    metrics = dict.fromkeys((group.sweep, group.target.metric) for group in groups)
    notes += [f"sweep {sweep}: {warning}" for sweep, metric in metrics if (warning := of_training(metric))]
    steps, values = kept.pop("steps"), kept.pop("values")
    evaluations = {
        "trial": np.repeat(np.arange(len(kept)), steps.map(len)),
        "step": np.concatenate([*steps]),
        "value": np.concatenate([*values]),
        "lr": np.concatenate([*kept["lrs"]]).astype(float),
    }
    kept = kept.drop(columns=["examples", "lrs", *UNSHOWN])
    return Results(kept, pd.DataFrame(evaluations), groups, notes, apart)


def read_trials(*paths: str | os.PathLike[str], metric: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Return every stored trial as it is, one row each, and notes; arguments and errors are those of :func:`load`."""
    stores: list[Store] = []
    notes: list[str] = []
    for store in itertools.chain.from_iterable(map(find_sweeps, paths)):
        if any(store.root.samefile(other.root) for other in stores):
            raise ConfigError(f"{store.root.resolve()} is in two of the given folders; give every sweep once")
        stores.append(store)
    manifests = [store.manifest() for store in stores]
    names = [
        str(manifest.get("name") or as_text(store.root.resolve().name))
        for store, manifest in zip(stores, manifests, strict=True)
    ]
    if len(set(names)) < len(names):
        names = [as_text(store.root.name) for store in stores]
    rows: list[dict[str, Any]] = []
    for store, name, manifest in zip(stores, names, manifests, strict=True):
        protocol, foreign = _protocol(store.root, manifest), "imported" in manifest
        notes += _other_code(store.root, manifest)
        records = [store.trials / trial_id / "record.parquet" for trial_id in store.trial_ids()]
        if not records:
            notes.append(f"sweep {store.root} has no finished trial yet: wait for it, or run its 'cbs sweep' again")
        chunks = [records[start : start + _CHUNK] for start in range(0, len(records), _CHUNK)]
        with ThreadPoolExecutor(4) as pool:
            read = pool.map(
                lambda part, foreign=foreign: [_read(path, metric, foreign=foreign) for path in part], chunks
            )
            trial_rows = sorted(itertools.chain.from_iterable(read), key=lambda row: str(row["choice"]))
        tuned = _tuned(store.root, manifest)
        rows += [{"sweep": name} | _pooled(row, tuned.get(row["choice"].name, [])) | protocol for row in trial_rows]
    if not rows:
        raise ResultsError(notes[0])
    every = pd.DataFrame(rows)
    return every, notes


def _protocol(root: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return how the sweep ended its trials: at what factor it pruned them, and whether it stopped them at the
    target."""
    protocol = manifest.get("protocol") or {}
    factor = protocol.get("prune_factor") if isinstance(protocol, dict) else "missing"
    if factor is not None and not (isinstance(factor, int | float) and factor > 1):
        raise ResultsError(f"{root}: protocol.prune_factor in sweep.json must be null or above 1, got {factor!r}")
    stops = protocol.get("stops_at_target", True)
    return {"root": root, "manifest": manifest, "prune_factor": factor, "stops_at_target": stops}


def _other_code(root: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what a sweep says about trials that were run with older code (:mod:`sweeps.folder.manifest`)."""
    runs = manifest.get("runs")
    changed = [
        run
        for run in (runs if isinstance(runs, list) else ())
        if isinstance(run, dict) and isinstance(run.get("code_changes"), list)
    ]
    if changed:
        earlier = changed[-1].get("earlier_trials")
        count = len(earlier) if isinstance(earlier, list) else "some"
        changes = re.sub(r"\b([0-9a-f]{10})[0-9a-f]{30}\b", r"\1", ", ".join(map(str, changed[-1]["code_changes"])))
        times = "" if len(changed) == 1 else f"{len(changed)} changes, the last: "
        yield f"sweep {as_text(root)}: {count} trials were run by different code than later ones: {times}{changes}"


def _tuned(root: Path, manifest: dict[str, Any]) -> dict[str, list[str]]:
    """Return the options that were tuned at every batch size, by the name of the optimizer."""
    axes = manifest.get("axes")
    tuned = axes.get("tuned", {}) if isinstance(axes, dict) else {}
    if not isinstance(tuned, dict) or not all(isinstance(names, list) for names in tuned.values()):
        raise ResultsError(f"{root}: axes.tuned in sweep.json must list options by optimizer, got {tuned!r}")
    return tuned


def _pooled(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return a trial with tuned options separated from the configuration, which is then the same within its group."""
    choice: Choice = row["choice"]
    own = {name: choice.options.get(name) for name in sorted(map(str, names))}
    if not own:
        return row | {"tuned": ""}
    kept = Choice(name=choice.name, options={key: value for key, value in choice.options.items() if key not in own})
    options = ", ".join(f"{key}={value_text(value)}" for key, value in own.items())
    config = row["config"] | {"optimizer": {"name": kept.name, "options": kept.options}}
    return row | {"tuned": options, "choice": kept, "config": config}


def _read(path: Path, metric: str | None, *, foreign: bool) -> dict[str, Any]:
    table, summary = read_record(path)
    steps = table["step"].to_numpy()
    try:
        config = with_stated(summary["config"], summary.get("stated") or {}, foreign=foreign)
        Target(**config["target"])
        if config.get("parent"):
            Parent(**config["parent"])
        _check_numbers(config)
        return {
            "trial_id": summary["trial_id"],
            **{key: config[key] for key in AXES[:3]},
            "status": str(TrialStatus(summary["status"])),
            "final_step": int(steps[-1]) if len(steps) else 0,
            "max_steps": config["max_steps"],
            "message": summary["message"],
            "warmup_steps": warmup_steps(config),
            "folder": path.parent,
            "config": config,
            "choice": Choice(**config["optimizer"]),
            "batch_schedule": str(Choice(**config["batch_schedule"])) if config.get("batch_schedule") else None,
            "workload_info": summary["workload"],
            "steps": steps,
            "examples": table["examples"].to_numpy(),
            "lrs": table["lr"].to_numpy(),
            "values": _values(table, config["target"]["metric"], metric, path),
            "directions": dict(summary.get("directions") or {}),
            # the last values of the metrics beside the target's
            "final_metrics": {
                name.removeprefix(METRIC): float(table[name].to_numpy()[-1])
                for name in (table.column_names if len(table) else ())
                if name.startswith(METRIC)
            },
        }
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(
            f"{path} is not a record of a trial ({error}); remove its folder and run the sweep again"
        ) from None


def _values(table: pa.Table, of_target: str, metric: str | None, path: Path) -> np.ndarray:
    """Return the values of a metric, ``None`` for that of the target, ``of_target``; none if there is no curve.

    Raises:
        ResultsError: if the trial did not record it.
    """
    if metric is None or metric == of_target or not len(table):
        return table["value"].to_numpy()
    others = {name.removeprefix(METRIC): name for name in table.column_names if name not in _NO_METRIC}
    if metric not in others:
        there = ", ".join([of_target, *others])
        raise ResultsError(f"sweep {as_text(path.parents[2])} has no metric {metric!r}; it has {there}")
    return table[others[metric]].to_numpy().astype(float)


def _check_numbers(config: dict[str, Any]) -> None:
    """Check the values used in computations: whole numbers, and a learning rate if it is known."""
    schedule = warmup(config)
    whole = {key: config[key] for key in ("batch_size", "seed", "max_steps")}
    whole |= {key: value for key in ("warmup_examples", "decay_examples") if (value := schedule.get(key)) is not None}
    for key, value in whole.items():
        if not isinstance(value, int | float) or value != value // 1 or not (key == "batch_size") <= value <= LARGEST:
            raise ValueError(f"{key} is {value!r}")
    lr = config["lr"]
    if lr is not None and not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise ValueError(f"lr is {lr!r}")


def are_branches(every: pd.DataFrame) -> np.ndarray:
    """Return a mask of the trials that are branches: at the checkpoint of their parent, some trial has a multiple of
    its batch size or learning rate."""
    parents = [config.get("parent") or {} for config in every["config"]]
    places = [(str(root), p.get("source"), p.get("examples")) for root, p in zip(every["root"], parents, strict=True)]
    branched = {place for place, parent in zip(places, parents, strict=True) if branch_factors(parent) != (1, 1)}
    return np.array([place in branched for place in places])


def branch_factors(parent: dict[str, Any]) -> tuple[float, float]:
    """Return the multiples of batch size and learning rate; 1 for what is no branch."""
    return float(parent.get("batch_factor", 1.0)), float(parent.get("lr_factor", 1.0))
