"""Answers side by side: those of one sweep, workload and target, and what else differs between folders compared."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.formatting import flat, shown
from analysis.read.groups import OF_BUDGET, Group
from analysis.read.results import load
from cbs.errors import ConfigError
from cbs.trial.target import Target

SCOPE = ("sweep", "workload", "metric", "target")
"""Columns with which every table begins, see :class:`Scope`."""

_SHOWN = ("data_hash", "parameters", "tokens_per_example", "example_unit", "metric_unit")

# Parts of a protocol that are reported elsewhere, or need not be equal
_NO_PROTOCOL = ("target", "example_unit", "tokens_per_example", "metric_unit")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The answers of one sweep, workload and target, one per optimizer.

    ``title`` is the target, preceded by whatever distinguishes the scope from others.
    """

    title: str = field(repr=False)
    answers: tuple[Answer, ...] = field(repr=False)

    @property
    def scope(self) -> dict[str, Any]:
        """Columns that identify this scope in a table."""
        group, target = self.answers[0].group, self.answers[0].target
        return dict(zip(SCOPE, (group.sweep, group.workload, target.metric, target.value), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; the target is an object here, unlike in a table."""
        return self.scope | {"target": self.answers[0].target.to_json()} | shown(self)


def read_scopes(
    path: str | os.PathLike[str],
    config: AnalysisConfig,
    targets: Sequence[float | Target] | None,
    others: Sequence[str | os.PathLike[str]] = (),
    metric: str | None = None,
) -> tuple[list[Scope], tuple[str, ...]]:
    """Return the answers of a folder of results, without noise scales, and notes on what was left out.

    With ``others`` the folders are treated as one sweep, and notes list everything else that differs between them.
    ``metric`` is as for :func:`analysis.read.results.load`.
    """
    results = load(path, *others, metric=metric)
    every, notes = answers(results, config, targets=targets, noise=False), [*results.notes]
    if others:
        notes += differing(results.groups)
        every = as_one(every)
    read = []
    for (*labels, _), members in scopes(every):
        title = ", ".join([*filter(None, labels), str(members[0].target).replace("_", " ")])
        read.append(Scope(title=title, answers=tuple(members)))
    return read, tuple(notes)


def scopes(answers: Sequence[Answer]) -> list[tuple[tuple[str, ...], list[Answer]]]:
    """Group answers that may be compared: those of one sweep, workload and target, in their order, each preceded by
    these three, with an empty text for any that all answers share."""
    by_parts: dict[tuple[str, ...], list[Answer]] = {}
    for answer in answers:
        by_parts.setdefault((answer.group.sweep, answer.group.workload, str(answer.target)), []).append(answer)
    titles = [parts if len(set(parts)) > 1 else [""] * len(parts) for parts in zip(*by_parts, strict=True)]
    return list(zip(zip(*titles, strict=True), by_parts.values(), strict=True))


def differing(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a line for every setting that is not the same in all sweeps of these groups, with its values."""
    by_sweep: dict[str, dict[str, Any]] = {group.sweep: settings_of(group) for group in groups}
    if len(by_sweep) < 2:
        return
    for name in dict.fromkeys(name for settings in by_sweep.values() for name in settings):
        values = {sweep: settings.get(name) for sweep, settings in by_sweep.items()}
        if len({repr(value) for value in values.values()}) > 1:
            told = ", ".join(f"{'none' if value is None else value} in {sweep}" for sweep, value in values.items())
            yield f"the folders differ in {name}: {told}"


def settings_of(group: Group) -> dict[str, Any]:
    """Return the settings of a sweep, by their dotted names, and the workload's facts from its trials, without settings
    that follow from the budget."""
    protocol = group.manifest.get("protocol")
    settings = dict(flat(protocol)) if isinstance(protocol, dict) else {}
    kept = {
        name: value
        for name, value in settings.items()
        if name.partition(".")[0] not in _NO_PROTOCOL and name.rpartition(".")[2] not in OF_BUDGET
    }
    return kept | {name: getattr(group, name) for name in _SHOWN}


def as_one(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers of several sweeps as if they came from one, so that they can be compared.

    Answers to one workload and target are joined; optimizers of the same name are distinguished by their sweeps.

    Raises:
        ConfigError: if the sweeps have different metrics, or no target in common.
    """
    sweeps = list(dict.fromkeys(answer.group.sweep for answer in answers))
    if len(sweeps) < 2:
        return list(answers)
    told = {(answer.target.metric, answer.target.direction): answer.group.sweep for answer in answers}
    if len(told) > 1:
        words = ", ".join(f"{metric} ({direction}) in {sweep}" for (metric, direction), sweep in told.items())
        raise ConfigError(f"different metrics cannot be compared: {words}")
    places: dict[Any, set[str]] = {}
    for answer in answers:
        places.setdefault((answer.group.workload, answer.target), set()).add(answer.group.sweep)
    if all(len(members) < 2 for members in places.values()):
        words = ", ".join(dict.fromkeys(f"{a.target} on {a.group.workload} in {a.group.sweep}" for a in answers))
        raise ConfigError(f"nothing in common to compare: {words}; give a --target that all of them passed")
    names = [(answer.group.workload, answer.target, answer.group.optimizer) for answer in answers]
    joined, one = [], " + ".join(sweeps)
    for answer, name in zip(answers, names, strict=True):
        label = answer.group.optimizer if names.count(name) == 1 else f"{answer.group.optimizer}, {answer.group.sweep}"
        joined.append(replace(answer, group=replace(answer.group, sweep=one, optimizer=label)))
    return joined
