"""Results on disk -> two tidy tables, and the groups whose trials may be compared with one another.

A group is what one curve of steps against batch size is drawn from: one sweep, one workload, one optimizer with its
options, one schedule. Its trials differ in learning rate, batch size and seed alone, so unlike trials are never pooled.
Trials whose batch size changed along the run are no points of such a curve, and are kept apart.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.plain import flat
from analysis.read.alike import alike
from cbs.choices import Choice, called, differences, parse_choice, value_text
from cbs.errors import ConfigError, ResultsError
from cbs.record import TrialStatus
from cbs.store import Store, find_sweeps, read_record
from cbs.target import Target

_CHUNK = 64
"""Records read by one thread at a time: handing them out one by one costs a third of the reading."""

_AXES = ("lr", "batch_size", "seed", "tuned")
_EXECUTION = ("max_steps", "micro_batch_size", "device", "compile", "probe", "diagnostics", "diagnostics_every")
"""How a trial is run, not what it trains; may differ within a group."""


_UNSHOWN = ("config", "choice", "batch_schedule", "workload_info")
"""Columns of what was read that are told by the groups."""

_MOST = 2**53
"""Whole numbers beyond it cannot be computed with."""
_RULED = "="
"""Begins the text of a setting that stands as what its rule keeps constant."""


def _half_life(name: str, told: str, value: Any, batch_size: int) -> dict[str, Any]:
    """A decay, or the second of several, as a half-life called ``told``; unchanged where it has none."""
    betas = value if isinstance(value, list) else [None, value]
    beta2 = betas[1] if len(betas) > 1 else None
    if not (isinstance(beta2, float) and 0 < beta2 < 1):
        return {name: value}
    others = {name: [betas[0], *betas[2:]]} if isinstance(value, list) else {}
    return others | {told: batch_size * math.log(2) / -math.log(beta2)}


_SCALED: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "schedule.warmup_examples": lambda value, size: {"warmup_steps": value / size},
    "schedule.decay_examples": lambda value, size: {"decay_steps": None if value is None else value / size},
    "optimizer.options.betas": functools.partial(_half_life, "betas", "beta2_half_life_examples"),
    "optimizer.options.beta2": functools.partial(_half_life, "beta2", "beta2_half_life_examples"),
    "averaging.options.decay": functools.partial(_half_life, "averaging.decay", "averaging_half_life_examples"),
}
"""Settings that may follow the batch size by rule -> what such a rule keeps constant."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials that differ in learning rate, batch size and seed alone, and in options that were tuned as the learning
    rate was.

    Attributes:
        sweep, folder: name and place of the sweep.
        workload: name of the workload, with the options that tell it from others of that name in the sweep.
        optimizer: name of the optimizer, with the options in which the results have variants of it, and every other
            setting that tells this group from others of that name in the sweep.
        choice: name of the optimizer alone, and all options it was given, those that were tuned left out.
        parameters: number of trained parameters, or ``None`` where no trial got so far as to know.
        target: where the trials stopped, or what imported ones are read at.
        stops_at_target: whether trials stopped once they reached ``target``; imported ones ran on.
        prune_factor: multiple of the best steps beyond which the sweep stopped trials; ``None`` where it did not.
        example_unit, tokens_per_example, metric_unit, data_hash: what is counted, and on what data, see
            :class:`cbs.record.WorkloadInfo`.
        tuned: names of the options of the optimizer that were tuned at every batch size (``cbs sweep --axis``).
    """

    sweep: str
    folder: Path
    workload: str
    optimizer: str
    choice: Choice
    workload_options: dict[str, Any]
    parameters: int | None
    target: Target
    stops_at_target: bool
    prune_factor: float | None
    example_unit: str
    tokens_per_example: int | None
    metric_unit: str
    data_hash: str | None = None
    tuned: tuple[str, ...] = ()

    @property
    def whose(self) -> dict[str, Any]:
        """What tells its numbers from those of others in a JSON."""
        return {name: getattr(self, name) for name in ("sweep", "workload", "optimizer")}


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """Trials under one batch schedule that differ in learning rate, first batch size and seed alone.

    Attributes:
        choice: the schedule with its options.
        reference: index of the group of trials that differ from these in having none; ``None`` where there are none.
        trials: one row per trial, as :attr:`Results.trials` without ``group``, with the evaluation curve in ``steps``,
            ``examples``, ``lrs`` and ``values``.
    """

    choice: Choice
    reference: int | None
    trials: pd.DataFrame


@dataclass(frozen=True)
class Results:
    """All trials at a path.

    Attributes:
        trials: one row per trial: ``sweep, group`` (index into ``groups``), ``trial_id, lr, batch_size, seed, status,
            final_step, max_steps, message, warmup_steps, folder, tuned`` (as of
            :attr:`analysis.estimate.studies.Study.tuned`).
        evaluations: one row per evaluation: ``trial`` (row of ``trials``), ``step, value``; ordered by both.
        notes: what was left out, one line each.
        scheduled: the trials with a batch schedule, which are in none of the other fields.
    """

    trials: pd.DataFrame
    evaluations: pd.DataFrame
    groups: list[Group]
    notes: list[str]
    scheduled: list[Scheduled] = field(default_factory=list)

    def of_group(self, group: int) -> pd.DataFrame:
        """The trials of one group."""
        return self.trials[self.trials["group"] == group]


def load(*paths: str | os.PathLike[str]) -> Results:
    """Read one sweep, or all sweeps of a folder; of several paths all of them.

    A trial that is there twice (same group, learning rate, batch size and seed; the runs differ in budget or in how
    they were executed) counts once: the run with a final status wins, then the one that took more steps.

    Raises:
        ConfigError: if a sweep is given twice.
        ResultsError: if nothing is there, or a file is missing, damaged, foreign or of another schema version.
    """
    stores: list[Store] = []
    notes: list[str] = []
    for store in itertools.chain.from_iterable(map(find_sweeps, paths)):
        if any(store.root.samefile(other.root) for other in stores):
            raise ConfigError(f"{store.root.resolve()} is in two of the given folders; give every sweep once")
        stores.append(store)
    names = [str(store.manifest().get("name") or _text(store.root.resolve().name)) for store in stores]
    if len(set(names)) < len(names):
        names = [_text(store.root.name) for store in stores]
    rows: list[dict[str, Any]] = []
    for store, name in zip(stores, names, strict=True):
        protocol = _protocol(store)
        notes += _other_code(store)
        records = [store.trials / trial_id / "record.parquet" for trial_id in store.trial_ids()]
        if not records:
            notes.append(f"sweep {store.root} has no finished trial yet; run 'cbs sweep' again to go on with it")
        chunks = [records[start : start + _CHUNK] for start in range(0, len(records), _CHUNK)]
        with ThreadPoolExecutor(4) as pool:
            read = pool.map(lambda chunk: [_read(path) for path in chunk], chunks)
            found = sorted(itertools.chain.from_iterable(read), key=lambda row: str(row["choice"]))
        tuned = _tuned(store)
        rows += [{"sweep": name} | _pooled(row, tuned.get(row["choice"].name, [])) | protocol for row in found]
    if not rows:
        raise ResultsError(notes[0])
    every = pd.DataFrame(rows)
    with_schedule = every["batch_schedule"].notna()
    trials = every[~with_schedule].reset_index(drop=True)
    if trials.empty:
        raise ResultsError(
            f"{', '.join(map(str, paths))}: every trial has a batch schedule, so there is no curve of steps against "
            "batch size; run the sweep without --schedule, too"
        )
    trials["group"], groups = _group(trials)
    scheduled = _scheduled(every, trials, notes) if with_schedule.any() else []
    kept = _without_duplicates(trials, notes)
    notes += alike(kept)
    metrics = dict.fromkeys((group.sweep, group.target.metric) for group in groups)
    notes += [f"sweep {sweep}: {told}" for sweep, metric in metrics if (told := of_training(metric))]
    steps, values = kept.pop("steps"), kept.pop("values")
    evaluations = {
        "trial": np.repeat(np.arange(len(kept)), steps.map(len)),
        "step": np.concatenate([*steps]),
        "value": np.concatenate([*values]),
    }
    kept = kept.drop(columns=["examples", "lrs", *_UNSHOWN, *protocol])
    return Results(kept, pd.DataFrame(evaluations), groups, notes, scheduled)


def _scheduled(every: pd.DataFrame, constant: pd.DataFrame, notes: list[str]) -> list[Scheduled]:
    """The trials with a batch schedule, each kind with the group that differs from it in having none."""
    without = [{key: part for key, part in config.items() if key != "batch_schedule"} for config in every["config"]]
    codes, _ = _group(every.assign(config=without))
    # row for row: the constant trials are those of ``every`` without a schedule, in their order
    pairs = pd.DataFrame({"code": codes[every["batch_schedule"].isna()], "group": constant["group"].to_numpy()})
    of_code = {code: part.iloc[0] for code, part in pairs.groupby("code")["group"] if part.nunique() == 1}
    rows = every.assign(reference=[of_code.get(code, -1) for code in codes], group=codes)
    rows = rows[rows["batch_schedule"].notna()]
    notes.append(
        f"{len(rows)} trials with a batch schedule are no points of a curve of steps against batch size and are left "
        "out of it; 'cbs schedule judge' judges them"
    )
    found = []
    for (_, text), part in rows.groupby(["group", "batch_schedule"], sort=False):
        kept = _without_duplicates(part.assign(group=0), notes)
        reference = int(kept["reference"].iloc[0])
        found.append(
            Scheduled(
                choice=parse_choice(str(text)),
                reference=None if reference < 0 else reference,
                trials=kept.drop(columns=["group", "reference", *_UNSHOWN, "root", "prune_factor", "stops_at_target"]),
            )
        )
    return found


def _text(path: Path | str) -> str:
    """A path as text; what is none, stands as its escape."""
    return str(path).encode(errors="backslashreplace").decode()


def _protocol(store: Store) -> dict[str, Any]:
    """What the sweep did to its trials: where it pruned them, and whether it stopped them at the target."""
    protocol = store.manifest().get("protocol") or {}
    factor = protocol.get("prune_factor") if isinstance(protocol, dict) else "missing"
    if factor is not None and not (isinstance(factor, int | float) and factor > 1):
        raise ResultsError(f"{store.root}: protocol.prune_factor in sweep.json must be null or above 1, got {factor!r}")
    return {"root": store.root, "prune_factor": factor, "stops_at_target": protocol.get("stops_at_target", True)}


def _other_code(store: Store) -> list[str]:
    """What a sweep says of trials that were run by other code than the later ones, see :mod:`sweeps.manifest`."""
    runs = store.manifest().get("runs")
    notes = []
    for run in runs if isinstance(runs, list) else ():
        if isinstance(run, dict) and isinstance(run.get("code_changes"), list):
            earlier = run.get("earlier_trials")
            count = len(earlier) if isinstance(earlier, list) else "some"
            changes = ", ".join(map(str, run["code_changes"]))
            notes.append(f"sweep {_text(store.root)}: {count} trials were run by other code than later ones: {changes}")
    return notes


def of_training(metric: str) -> str:
    """What is to be said of a metric that by its name was measured on the batches trained on; empty where it was not.

    Steps that are too many by the same window w at every batch size lie on a hyperbola, too, whose critical batch size
    is S_min/(S_min + w) of the true one, so that no curve shows it.
    """
    words = re.findall("[a-z]+", metric.lower())
    if any(word.startswith(("val", "eval", "test", "dev", "held")) for word in words):
        return ""
    if not any(word.startswith(("train", "running", "smooth")) for word in words):
        return ""
    return (
        f"{metric} is of the batches trained on, by its name: it scatters more the smaller they are, and a mean over "
        "steps passes the target late by its window, which makes the critical batch size too small and shows nowhere; "
        "take a validation metric"
    )


def _tuned(store: Store) -> dict[str, list[str]]:
    """By the name of an optimizer the options that were tuned at every batch size."""
    axes = store.manifest().get("axes")
    tuned = axes.get("tuned", {}) if isinstance(axes, dict) else {}
    if not isinstance(tuned, dict) or not all(isinstance(names, list) for names in tuned.values()):
        raise ResultsError(f"{store.root}: axes.tuned in sweep.json must list options by optimizer, got {tuned!r}")
    return tuned


def _pooled(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """A trial with the options that were tuned apart from the configuration, in which its group is alike."""
    choice: Choice = row["choice"]
    own = {name: choice.options.get(name) for name in sorted(map(str, names))}
    if not own:
        return row | {"tuned": ""}
    kept = Choice(name=choice.name, options={key: value for key, value in choice.options.items() if key not in own})
    told = ", ".join(f"{key}={value_text(value)}" for key, value in own.items())
    config = row["config"] | {"optimizer": {"name": kept.name, "options": kept.options}}
    return row | {"tuned": told, "choice": kept, "config": config}


def _read(path: Path) -> dict[str, Any]:
    table, summary = read_record(path)
    steps = table["step"].to_numpy()
    try:
        config = summary["config"]
        Target(**config["target"])
        _check_numbers(config)
        return {
            "trial_id": summary["trial_id"],
            **{key: config[key] for key in _AXES[:3]},
            "status": str(TrialStatus(summary["status"])),
            "final_step": int(steps[-1]) if len(steps) else 0,
            "max_steps": config["max_steps"],
            "message": summary["message"],
            "warmup_steps": (config.get("schedule") or {}).get("warmup_examples", 0) / config["batch_size"],
            "folder": path.parent,
            "config": config,
            "choice": Choice(**config["optimizer"]),
            "batch_schedule": str(Choice(**config["batch_schedule"])) if config.get("batch_schedule") else None,
            "workload_info": summary["workload"],
            "steps": steps,
            "examples": table["examples"].to_numpy(),
            "lrs": table["lr"].to_numpy(),
            "values": table["value"].to_numpy(),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(
            f"{path} is not a record of a trial ({error}); remove its folder and run the sweep again"
        ) from None


def _check_numbers(config: dict[str, Any]) -> None:
    """Check what is computed with: whole numbers, and a learning rate where it is known."""
    schedule = config.get("schedule") or {}
    whole = {key: config[key] for key in ("batch_size", "seed", "max_steps")}
    whole |= {key: value for key in ("warmup_examples", "decay_examples") if (value := schedule.get(key)) is not None}
    for key, value in whole.items():
        if not isinstance(value, int | float) or value != value // 1 or not (key == "batch_size") <= value <= _MOST:
            raise ValueError(f"{key} is {value!r}")
    lr = config["lr"]
    if lr is not None and not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise ValueError(f"lr is {lr!r}")


def _without_duplicates(trials: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The trials that count, in their order; says how many were dropped."""
    final = trials["status"].map(lambda status: TrialStatus(status).final)
    ranked = trials.assign(final=final).sort_values(["final", "final_step"], ascending=False, kind="stable")
    kept = trials.loc[sorted(ranked.drop_duplicates(["group", *_AXES]).index)].reset_index(drop=True)
    if len(kept) < len(trials):
        notes.append(
            f"{len(trials) - len(kept)} trials are there twice; of each the longer run with a final status counts"
        )
    return kept


def _group(trials: pd.DataFrame) -> tuple[np.ndarray, list[Group]]:
    """Index of the group of every trial, and the groups."""
    texts = [
        json.dumps({key: value for key, value in config.items() if key not in (*_AXES, *_EXECUTION)})
        for config in trials["config"]
    ]
    parts = {text: {key: json.dumps(part) for key, part in flat(json.loads(text))} for text in set(texts)}
    settings = pd.DataFrame([parts[text] for text in texts]).fillna("")
    # no options at all, which none of the columns of options says as well
    empty = [f"{part}.options" for part in ("optimizer", "workload", "averaging", "schedule")]
    settings = settings.drop(columns=empty, errors="ignore")
    sweep = trials["root"].map(_text)
    workload = sweep + "\n" + settings["workload.name"]
    for name in ("data_hash", "parameters"):
        # a trial that failed before its data and model were known takes those of its sweep's workload
        known = trials["workload_info"].map(lambda info, name=name: json.dumps(info[name]) if info else None)
        settings[f"workload.{name}"] = known.fillna(known.groupby(workload).transform("first")).fillna("")
    for name in [name for name in _SCALED if name in settings]:
        scope = workload + "\n" + settings["optimizer.name"]
        settings[name] = _canonical(name, settings[name], trials["batch_size"], scope)
    keys = settings.assign(sweep=sweep)
    codes = keys.groupby(list(keys), sort=False).ngroup()
    first = codes.drop_duplicates().index
    infos: list[dict[str, Any]] = [next(filter(None, found), {}) for _, found in trials["workload_info"].groupby(codes)]
    return codes.to_numpy(), _describe(trials.loc[first], settings.loc[first], infos)


def _canonical(name: str, values: pd.Series, batch_sizes: pd.Series, scope: pd.Series) -> pd.Series:
    """``values`` as they are, or as what their rule keeps constant, whichever takes fewer values in the scope."""

    def ruled(value: str, batch_size: int) -> str:
        constant = _SCALED[name](json.loads(value), batch_size) if value else {}
        rounded = {key: float(f"{part:.6g}") if isinstance(part, float) else part for key, part in constant.items()}
        return _RULED + json.dumps(rounded) if value else ""

    found = pd.Series([ruled(*pair) for pair in zip(values, batch_sizes, strict=True)], index=values.index)
    fewer = found.groupby(scope).transform("nunique") < values.groupby(scope).transform("nunique")
    return found.where(fewer, values)


def _describe(first: pd.DataFrame, settings: pd.DataFrame, infos: list[dict[str, Any]]) -> list[Group]:
    """Groups, from the first trial and the settings of each; labels hold what tells groups of one name apart."""
    rows, sweeps, choices = settings.to_dict("records"), first["root"].map(_text), list(first["choice"])
    of_workload, of_optimizer, others = ([_told(row, of) for row in rows] for of in ("workload.", "optimizer.", ""))
    kinds = [(sweep, config["workload"]["name"]) for sweep, config in zip(sweeps, first["config"], strict=True)]
    told = differences(of_workload, kinds)
    workloads = [called(name, sorted(part.items())) for (_, name), part in zip(kinds, told, strict=True)]
    # variants are told apart in all results alike, so that an optimizer has one name in all sweeps
    options = differences(of_optimizer, [choice.name for choice in choices])
    unlike = differences(others, [(*kind, each.name) for *kind, each in zip(sweeps, workloads, choices, strict=True)])
    return [
        Group(
            sweep=row["sweep"],
            folder=row["root"],
            workload=workload,
            optimizer=called(choice.name, [*sorted(own.items()), *sorted(rest.items())]),
            choice=choice,
            workload_options=row["config"]["workload"]["options"],
            parameters=info.get("parameters"),
            target=Target(**row["config"]["target"]),
            stops_at_target=bool(row["stops_at_target"]),
            prune_factor=None if pd.isna(row["prune_factor"]) else row["prune_factor"],
            example_unit=info.get("example_unit", "example"),
            tokens_per_example=info.get("tokens_per_example"),
            metric_unit=info.get("metric_unit", ""),
            data_hash=info.get("data_hash"),
            tuned=tuple(parse_choice(f"tuned({row['tuned']})").options),
        )
        for (_, row), workload, choice, own, rest, info in zip(
            first.iterrows(), workloads, choices, options, unlike, infos, strict=True
        )
    ]


def _told(row: Mapping[str, str], of: str) -> dict[str, Any]:
    """Settings of the workload, of the optimizer or all others, by short names."""
    told: dict[str, Any] = {}
    for name, text in row.items():
        if text and (name.startswith(of) if of else not name.startswith(("workload.", "optimizer."))):
            short = name.removeprefix(of).removeprefix("options.")
            told |= json.loads(text.removeprefix(_RULED)) if text.startswith(_RULED) else {short: json.loads(text)}
    return told
