"""Groups of trials that may be compared with one another.

A group is what one curve of steps against batch size is drawn from: one sweep, one workload, one optimizer with its
options, one schedule. Its trials differ only in learning rate, batch size and seed, so different settings are never
pooled. Trials whose batch size changed during the run are points of no such curve, and are grouped by their schedule.
Settings that an external training program did not report are unknown.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.formatting import flat
from cbs.registry.choices import Choice, called, differences, parse_choice
from cbs.trial.config import COMMAND, OF_TRAINER, UNKNOWN
from cbs.trial.record import TrialStatus
from cbs.trial.target import Direction, Target

STATED = "stated"  # Key of the settings that a program reported, in a configuration that was read


def with_stated(config: dict[str, Any], stated: dict[str, Any], *, foreign: bool) -> dict[str, Any]:
    """Return the configuration of a trial with the settings ``stated`` by its program, see
    :attr:`cbs.trial.record.TrialResult.stated`; the warmup is in examples, as for other trials.

    A configuration holds defaults for settings that nobody reported; these are replaced by "unknown", also for
    ``foreign`` trials, which were imported.
    """
    if foreign or config["workload"]["name"] == COMMAND:
        config = config | dict.fromkeys(OF_TRAINER, UNKNOWN)
    if not stated:
        return config
    kept = {name: value for name, value in stated.items() if name != "warmup_steps"}
    if "warmup_steps" in stated:
        kept["warmup_examples"] = stated["warmup_steps"] * config["batch_size"]
    return config | {STATED: kept}


def warmup(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that describes the learning-rate warmup; empty if nothing does."""
    schedule = config.get("schedule")
    return dict(schedule) if isinstance(schedule, dict) else dict(config.get(STATED, {}))


def warmup_steps(config: dict[str, Any]) -> float:
    """Return the warmup steps of the learning rate; 0 if unknown. For a trial that starts from a checkpoint, what its
    parent left of the warmup, or its own."""
    parent = config.get("parent") or {}
    left = warmup(config).get("warmup_examples", 0) - parent.get("examples", 0)
    return float(max(left, parent.get("warmup_examples", 0), 0) / config["batch_size"])


def completed(values: Sequence[str], scopes: Sequence[Hashable]) -> list[str]:
    """Fill in a setting of trials that do not report it (an empty text), from other trials of the same scope if these
    agree, because a program may fail before it reports anything."""
    reported: dict[Hashable, set[str]] = {}
    for value, scope in zip(values, scopes, strict=True):
        reported.setdefault(scope, set()).update({value} - {""})
    agreed = {scope: next(iter(found)) for scope, found in reported.items() if len(found) == 1}
    return [value or agreed.get(scope, "") for value, scope in zip(values, scopes, strict=True)]


AXES = ("lr", "batch_size", "seed", "tuned")
EXECUTION = (
    "max_steps",
    "micro_batch_size",
    "device",
    "compile",
    "probe",
    "diagnostics",
    "diagnostics_every",
    "metrics",
)
"""Settings of how a trial is run rather than what it trains; they may differ within a group."""

OF_BUDGET = ("decay_examples", "decay_steps", "train_examples", "max_examples", "max_steps")
"""Settings that follow from the budget of a run and do not distinguish two optimizers."""

UNSHOWN = (
    *("config", "choice", "batch_schedule", "workload_info", "root", "manifest", "prune_factor", "stops_at_target"),
    "directions",
)
"""Columns that are given by the group of a trial."""

LOSSES = ("train_loss", "training_loss")  # Metrics that have the unit of the target if the target is a loss

# Fields of a group that trials record about their workload
_KNOWN = ("parameters", "example_unit", "tokens_per_example", "metric_unit", "data_hash")

_RULED = "="  # Prefix of a setting that is represented by the quantity that its rule keeps constant


def _half_life(name: str, text: str, value: Any, batch_size: int) -> dict[str, Any]:
    """Convert a decay rate, or the second of several, to a half-life called ``text``; unchanged if it has none."""
    betas = value if isinstance(value, list) else [None, value]
    beta2 = betas[1] if len(betas) > 1 else None
    if not (isinstance(beta2, float) and 0 < beta2 < 1):
        return {name: value}
    others = {name: [betas[0], *betas[2:]]} if isinstance(value, list) else {}
    return others | {text: batch_size * math.log(2) / -math.log(beta2)}


# Settings that may follow the batch size by a rule, with a function that computes what the rule keeps constant
_SCALED: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "schedule.warmup_examples": lambda value, size: {"warmup_steps": value / size},
    "schedule.decay_examples": lambda value, size: {"decay_steps": None if value is None else value / size},
    f"{STATED}.warmup_examples": lambda value, size: {"warmup_steps": value / size},
    "optimizer.options.betas": functools.partial(_half_life, "betas", "beta2_half_life_examples"),
    "optimizer.options.beta2": functools.partial(_half_life, "beta2", "beta2_half_life_examples"),
    "averaging.options.decay": functools.partial(_half_life, "averaging.decay", "averaging_half_life_examples"),
}


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials that differ only in learning rate, batch size and seed, and in options that were tuned like the learning
    rate.

    Attributes:
        sweep, folder: name and folder of the sweep.
        manifest: content of ``sweep.json`` when the results were read.
        workload: name of the workload, with the options that distinguish it from others of that name in the sweep.
        optimizer: name of the optimizer, with the options that distinguish its variants in the results, and all other
            settings that distinguish this group from others of that name in the sweep.
        at_any_budget: the same without settings that follow from a run's budget.
        choice: name of the optimizer alone, and all options it was given except tuned ones.
        workload_options: options of the workload.
        parameters: number of trained parameters; ``None`` if no trial got far enough to know it.
        target: target at which trials stopped, or at which imported ones are read; on the requested metric.
        beside: whether that metric is one at which no trial stopped; the value of ``target`` is then meaningless.
        further_targets: targets on other metrics that trials also had to reach before they stopped.
        stops_at_target: whether trials stopped once they reached ``target``; imported ones ran on.
        prune_factor: multiple of the best steps beyond which the sweep stopped trials; ``None`` if it did not.
        example_unit, tokens_per_example, metric_unit, data_hash: units and data, see
            :class:`cbs.trial.record.WorkloadInfo`.
        tuned: names of the optimizer's options that were tuned at every batch size (``cbs sweep --axis``).
    """

    sweep: str
    folder: Path
    workload: str
    optimizer: str
    choice: Choice
    target: Target
    stops_at_target: bool
    at_any_budget: str = ""
    workload_options: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    prune_factor: float | None = None
    example_unit: str = "example"
    tokens_per_example: int | None = None
    metric_unit: str = ""
    data_hash: str | None = None
    tuned: tuple[str, ...] = ()
    beside: bool = False
    further_targets: tuple[Target, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def seeded(self) -> bool:
        """Whether another seed gives another run, which it does not where a program of the user does not take it."""
        return "{seed}" in str(self.workload_options.get("command", "{seed}"))

    @property
    def evaluated(self) -> bool:
        """Whether the metric is evaluated on the same data every time.

        This holds for every model that a sweep trains itself, unless the metric is of the training batches; an imported
        log may contain anything.
        """
        own = self.parameters is not None and "imported" not in self.manifest
        return own and not of_training(self.target.metric)

    @property
    def whose(self) -> dict[str, Any]:
        """Fields that identify the group in JSON output."""
        return {name: getattr(self, name) for name in ("sweep", "workload", "optimizer")}

    def read_by(self, metric: str, direction: Direction) -> Group:
        """Return the group with another recorded metric; ``direction`` applies if none of its targets gives one."""
        if metric == self.target.metric:
            return self
        own = next((target for target in self.further_targets if target.metric == metric), None)
        loss = metric in LOSSES and self.target.direction == "below"
        return replace(
            self,
            target=own or Target(metric=metric, value=0.0, direction=direction),
            beside=own is None,
            further_targets=(self.target, *(each for each in self.further_targets if each != own)),
            prune_factor=None,
            metric_unit=self.metric_unit if loss else "",
        )


def grouped(trials: pd.DataFrame) -> tuple[np.ndarray, list[Group]]:
    """Return the index of the group of every trial, and the groups."""
    texts = [
        json.dumps({key: value for key, value in config.items() if key not in (*AXES, *EXECUTION)})
        for config in trials["config"]
    ]
    # no options at all are no setting
    empty = [f"{part}.options" for part in ("optimizer", "workload", "averaging", "schedule")]
    parts = {
        text: {key: json.dumps(part) for key, part in flat(json.loads(text)) if key not in empty} for text in set(texts)
    }
    settings = [dict(parts[text]) for text in texts]
    sweeps = [as_text(root) for root in trials["root"]]
    workloads = [(sweep, row["workload.name"]) for sweep, row in zip(sweeps, settings, strict=True)]
    for name in _KNOWN:
        # a trial that failed before its data and model were known takes those of its sweep's workload
        known = [json.dumps(info[name]) if info else "" for info in trials["workload_info"]]
        others = {workload: text for workload, text in zip(reversed(workloads), reversed(known), strict=True) if text}
        for row, workload, text in zip(settings, workloads, known, strict=True):
            row[f"workload.{name}"] = text or others.get(workload, "")
    scopes = [(*workload, row["optimizer.name"]) for workload, row in zip(workloads, settings, strict=True)]
    names = list(dict.fromkeys(name for row in settings for name in row))
    for name in names:
        values = [row.get(name, "") for row in settings]
        if name in _SCALED:
            values = _canonical(name, values, trials["batch_size"], scopes)
        if name.startswith(f"{STATED}."):
            values = completed(values, scopes)
        for row, value in zip(settings, values, strict=True):
            row[name] = value
    keys = [(sweep, *(row[name] for name in names)) for sweep, row in zip(sweeps, settings, strict=True)]
    places = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    codes = np.array([places[key] for key in keys])
    first = [keys.index(key) for key in places]
    infos: list[dict[str, Any]] = [
        next(filter(None, group_infos), {}) for _, group_infos in trials["workload_info"].groupby(codes)
    ]
    return codes, _describe(trials.iloc[first], [settings[index] for index in first], infos)


def _canonical(name: str, values: Sequence[str], batch_sizes: Iterable[int], scopes: Sequence[Hashable]) -> list[str]:
    """Return ``values`` unchanged, or as what their rule keeps constant, whichever has fewer different values."""

    def ruled(value: str, batch_size: int) -> str:
        constant = _SCALED[name](json.loads(value), batch_size) if value else {}
        rounded = {key: float(f"{part:.6g}") if isinstance(part, float) else part for key, part in constant.items()}
        return _RULED + json.dumps(rounded) if value else ""

    canonical = [ruled(*pair) for pair in zip(values, batch_sizes, strict=True)]
    unlike: dict[Hashable, tuple[set[str], set[str]]] = {}
    for scope, *pair in zip(scopes, canonical, values, strict=True):
        for seen, value in zip(unlike.setdefault(scope, (set(), set())), pair, strict=True):
            seen.add(value)
    fewer = {scope for scope, (of_rule, as_given) in unlike.items() if len(of_rule) < len(as_given)}
    return [its if scope in fewer else value for its, value, scope in zip(canonical, values, scopes, strict=True)]


def _describe(first: pd.DataFrame, rows: list[dict[str, str]], infos: list[dict[str, Any]]) -> list[Group]:
    """Return the groups from the first trial and the settings of each; labels distinguish groups of one name."""
    sweeps, choices = first["root"].map(as_text), list(first["choice"])
    of_workload, of_optimizer, others = (
        [_settings_of(row, of) for row in rows] for of in ("workload.", "optimizer.", "")
    )
    kinds = [(sweep, config["workload"]["name"]) for sweep, config in zip(sweeps, first["config"], strict=True)]
    labels = differences(of_workload, kinds)
    workloads = [called(name, sorted(part.items())) for (_, name), part in zip(kinds, labels, strict=True)]
    # variants get the same labels in all results, so that an optimizer has one name in all sweeps
    options = differences(of_optimizer, [choice.name for choice in choices])
    unlike = differences(others, [(*kind, each.name) for *kind, each in zip(sweeps, workloads, choices, strict=True)])
    return [
        Group(
            sweep=row["sweep"],
            folder=row["root"],
            manifest=row["manifest"],
            workload=workload,
            optimizer=called(choice.name, labelled),
            at_any_budget=called(
                choice.name,
                # an option and a setting may have one name, so by name alone
                sorted((each for each in labelled if each[0].rpartition(".")[2] not in OF_BUDGET), key=itemgetter(0)),
            ),
            choice=choice,
            workload_options=row["config"]["workload"]["options"],
            target=Target(**row["config"]["target"]),
            further_targets=tuple(Target(**each) for each in row["config"].get("further_targets", ())),
            stops_at_target=bool(row["stops_at_target"]),
            prune_factor=None if pd.isna(row["prune_factor"]) else row["prune_factor"],
            **{name: value for name, value in info.items() if name in _KNOWN},
            tuned=tuple(parse_choice(f"tuned({row['tuned']})").options),
        )
        for (_, row), workload, choice, own, rest, info in zip(
            first.iterrows(), workloads, choices, options, unlike, infos, strict=True
        )
        for labelled in [[*sorted(own.items()), *sorted(rest.items())]]
    ]


def _settings_of(row: Mapping[str, str], of: str) -> dict[str, Any]:
    """Return the settings of the workload, of the optimizer, or all others, by short names."""
    settings: dict[str, Any] = {}
    for name, text in row.items():
        if text and (name.startswith(of) if of else not name.startswith(("workload.", "optimizer."))):
            short = name.removeprefix(of).removeprefix("options.")
            settings |= json.loads(text.removeprefix(_RULED)) if text.startswith(_RULED) else {short: json.loads(text)}
    return settings


def of_training(metric: str) -> str:
    """Return a warning about a metric that, by its name, was measured on training batches; empty otherwise.

    If steps are too many by the same window w at every batch size, they still lie on a hyperbola, whose critical batch
    size is S_min/(S_min + w) of the true one, so the curve does not reveal the error.
    """
    words = re.findall("[a-z]+", metric.lower())
    if any(word.startswith(("val", "eval", "test", "dev", "held")) for word in words):
        return ""
    if not any(word.startswith(("train", "running", "smooth")) for word in words):
        return ""
    return (
        f"{metric} is measured on the training batches, by its name: it scatters more the smaller they are, and a mean "
        "over steps passes the target late by its window, which makes the critical batch size too small without any "
        "sign of it; take a validation metric"
    )


def without_duplicates(trials: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return the trials that count, in their order, and note how many duplicates were dropped."""
    final = trials["status"].map(lambda status: TrialStatus(status).final)
    ranked = trials.assign(final=final).sort_values(["final", "final_step"], ascending=False, kind="stable")
    kept = trials.loc[sorted(ranked.drop_duplicates(["group", *AXES]).index)].reset_index(drop=True)
    if len(kept) < len(trials):
        notes.append(
            f"{len(trials) - len(kept)} trials appear twice; of each the longer run with a final status counts"
        )
    return kept


def as_text(path: Path | str) -> str:
    """Return a path as text; bytes that are not valid text are escaped."""
    return str(path).encode(errors="backslashreplace").decode()


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
    # grouped again without the schedule: the group that then holds both is the one to compare with
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
