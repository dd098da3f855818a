"""Reference of ``cbs sweep --set``: every key, its default and its meaning, read from the docstrings of the code."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cbs.diagnostics import DIAGNOSTICS
from cbs.errors import ConfigError
from cbs.registry import Registry
from cbs.schedules.batch_size import BATCH_SCHEDULES, Looking
from cbs.schedules.learning_rate import SCHEDULES
from cbs.training.averaging import AVERAGES
from cbs.training.metrics import METRICS
from cbs.training.noise_scale import ProbeOptions
from cbs.trial.config import DEVICES, TrialConfig
from cbs.trial.parent import Parent
from cbs.workloads import WORKLOADS
from sweeps.spec.overrides import FIELD, NAMES, OF_PARENT, OF_TRIAL, RUN, typed
from sweeps.spec.spec import SEARCHES, SearchPlan, Sweep

_ENTRY = re.compile(r"^(?:    )?(\w[\w, ]*): (.*)$")
_ROLE = re.compile(r":\w+:`~?\.?([^`]*)`")


@dataclass(frozen=True)
class SweepSetting:
    """One key of ``cbs sweep --set``.

    Attributes:
        group: heading under which it is listed.
        key: the key as typed.
        default: the default as typed; empty if a value has to be given.
        meaning: one or two sentences.
    """

    group: str
    key: str
    default: str
    meaning: str


@dataclass(frozen=True)
class SettingsReference:
    """The keys of ``cbs sweep --set`` in groups."""

    rows: tuple[SweepSetting, ...]

    def to_json(self) -> list[dict[str, str]]:
        """Return one dictionary for each key."""
        return [dataclasses.asdict(row) for row in self.rows]

    def lines(self) -> list[RenderableType]:
        """Return headings and tables for a terminal."""
        shown: list[RenderableType] = []
        for group, members in groupby(self.rows, key=lambda row: row.group):
            table = Table(box=None, pad_edge=False, show_header=False)
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for row in members:
                table.add_row(Text(f"  {row.key}={row.default or '...'}"), Text(row.meaning))
            shown += [*([Text()] if shown else []), Text(group, style="bold"), table]
        return shown


def settings_about(words: Iterable[str], sweep: Sweep) -> SettingsReference:
    """Return the settings whose key, group or meaning contains one of the words; all settings if no word is given.

    Args:
        words: words to look for, in upper or lower case.
        sweep: sweep whose values are shown as defaults.

    Raises:
        ConfigError: if no setting contains a word.
    """
    asked = [word.lower() for word in words]
    rows = [row for row in settings(sweep) if not asked or any(word in str(row).lower() for word in asked)]
    if not rows:
        raise ConfigError(f"no setting mentions {' or '.join(asked)}; 'cbs explain --settings' lists all")
    return SettingsReference(tuple(rows))


def documented(doc: str | None) -> dict[str, str]:
    """Return the description of each name under ``Attributes:`` or ``Args:`` of a docstring, on one line each."""
    texts: dict[str, str] = {}
    inside, names = False, []
    for line in inspect.cleandoc(doc or "").splitlines():
        if not line.startswith(" "):
            inside = line in ("Attributes:", "Args:") or (inside and not line)
        elif inside and (entry := _ENTRY.match(line)) and not line.startswith(" " * 8):
            names = [name.strip() for name in entry[1].split(",")]
            texts |= dict.fromkeys(names, entry[2])
        elif inside:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return {name: _plain(text) for name, text in texts.items()}


def settings(sweep: Sweep) -> list[SweepSetting]:
    """Return all keys except the options of optimizers, which ``cbs optimizers NAME`` shows.

    Args:
        sweep: sweep whose values are shown as defaults.
    """
    said: dict[str, str] = {}
    for part in (TrialConfig, SearchPlan, Sweep):
        said |= documented(part.__doc__)
    names = {"metrics": METRICS.names(), "diagnostics": DIAGNOSTICS.names(), "device": DEVICES, "search": SEARCHES}

    def of_sweep(group: str, keys: Iterable[str]) -> Iterator[SweepSetting]:
        for key in keys:
            among = f" Among {', '.join(names[key])}." if key in names else ""
            value = sweep.value(FIELD.get(key, key))
            yield SweepSetting(group, key, typed(None if value == () else value), said[FIELD.get(key, key)] + among)

    def of_parent() -> Iterator[SweepSetting]:
        meanings = documented(Parent.__doc__)
        for field in dataclasses.fields(Parent):
            if field.name in OF_PARENT:
                default = "..." if field.default is dataclasses.MISSING else typed(field.default)
                yield SweepSetting(
                    "With --from-checkpoint, or in a branch", f"parent.{field.name}", default, meanings[field.name]
                )

    probe = "none" if sweep.trial.probe is None else sweep.trial.probe.name
    averages = f"{said['averaging']} Among {', '.join(AVERAGES.names())}."
    return [
        *of_sweep("Of every trial", (*OF_TRIAL, *NAMES)),
        *(SweepSetting("How the sweep runs", key, run.default, run.meaning) for key, run in RUN.items()),
        *_fields("Learning-rate schedule", "schedule", sweep.schedule, {"name": SCHEDULES.names()}),
        *_options("With schedule.name={}", "schedule", SCHEDULES, 1),
        *_options("With --schedule {}", "schedule", BATCH_SCHEDULES, 1),
        *_fields("When the metric is measured", "evaluation", sweep.trial.evaluation, {}),
        *of_parent(),
        SweepSetting("Noise scale", "probe", probe, "Source of the noise scale, or none."),
        *_fields("Noise scale", "probe", ProbeOptions(source=probe), {}),
        SweepSetting("Average of the weights", "averaging", "none", averages),
        *_options("With averaging={}", "averaging", AVERAGES, 1),
        *_options("With --workload {}", "workload", WORKLOADS, 0),
    ]


def _fields(heading: str, part: str, values: Any, choices: dict[str, list[str]]) -> Iterator[SweepSetting]:
    said = documented(type(values).__doc__)
    for field in dataclasses.fields(values):
        if field.name in ("options", "source"):
            continue
        meaning = said[field.name]
        if field.name in choices:
            meaning = f"One of {', '.join(choices[field.name])}, or package.module:name."
        yield SweepSetting(heading, f"{part}.{field.name}", typed(getattr(values, field.name)), meaning)


def _options(group: str, part: str, entries: Registry[Any], skipped: int) -> Iterator[SweepSetting]:
    """Yield the options of the entries of a registry; the first ``skipped`` parameters are not set by users."""
    for name in entries:
        entry = entries[name]
        said = documented(Looking.__doc__) | documented(entry.__doc__) | documented(entry.__init__.__doc__)
        for parameter in [*inspect.signature(entry).parameters.values()][skipped:]:
            default = "" if parameter.default is inspect.Parameter.empty else typed(parameter.default)
            yield SweepSetting(group.format(name), f"{part}.{parameter.name}", default, said.get(parameter.name, ""))


def _plain(text: str) -> str:
    """Turn a description into a plain sentence without reStructuredText markup."""
    text = _ROLE.sub(lambda role: role[1].rpartition(".")[2], text)
    text = text.replace("``None``", "none").replace("``", "").replace('"', "")
    return text[:1].upper() + text[1:]
