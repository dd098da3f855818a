"""Where the numbers of the page come from: protocol, commands, software and machine, and how the trials ended."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.present.table import Column, Table

if TYPE_CHECKING:
    from analysis.read.results import Results

MESSAGES = 20
"""Most messages of trials that are shown."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Where one sweep comes from.

    Attributes:
        name: of the sweep.
        folder: where it lies.
        protocol: setting and value, of what all trials share.
        axes: what was varied.
        runs: one per command that added to it, see :func:`_run`.
    """

    name: str
    folder: str
    protocol: tuple[tuple[str, str], ...]
    axes: tuple[tuple[str, str], ...]
    runs: tuple[Mapping[str, str], ...]


def sweep(name: str, folder: str, manifest: Mapping[str, Any]) -> Sweep:
    """A sweep from its ``sweep.json``; what is missing there is left out."""
    protocol = list(_flatten(manifest.get("protocol") or {}))
    if manifest.get("data_hash"):
        protocol.append(("data hash", str(manifest["data_hash"])))
    return Sweep(
        name=name,
        folder=folder,
        protocol=tuple(protocol),
        axes=tuple(_flatten(manifest.get("axes") or {})),
        runs=tuple(_run(entry) for entry in manifest.get("runs") or ()),
    )


def latest(sweeps: Sequence[Sweep]) -> list[tuple[str, str]]:
    """Software and machine of the run that started last, for the head of the page."""
    runs = [run for sweep in sweeps for run in sweep.runs]
    if not runs:
        return []
    last = max(runs, key=lambda run: run["started"])
    shown = (("Software", "software"), ("Machine", "hardware"), ("Commit", "git"))
    return [(name, re.sub(r"\b([0-9a-f]{10})[0-9a-f]{30}\b", r"\1", last[key])) for name, key in shown if last[key]]


def _run(entry: Mapping[str, Any]) -> dict[str, str]:
    """Command, start and what it ran on, as lines of text."""
    hardware = entry.get("hardware") or {}
    memory = hardware.get("memory_bytes")
    machine = [
        *(str(hardware[key]) for key in ("system", "processor") if hardware.get(key)),
        *([f"{hardware['cores']} cores"] if hardware.get("cores") else []),
        *([f"{memory / 2**30:.0f} GiB memory"] if memory else []),
        *(_text(gpu) for gpu in hardware.get("gpus") or ()),
    ]
    versions = entry.get("versions") or {}
    git = entry.get("git") or {}
    return {
        "command": str(entry.get("command", "")),
        "started": str(entry.get("started", "")),
        "software": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "hardware": ", ".join(machine),
        "git": ", ".join(f"{name} {commit}" for name, commit in git.items() if commit),
    }


def _flatten(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, part in value.items():
        name = f"{before}{key}"
        if isinstance(part, Mapping) and part:
            yield from _flatten(part, f"{name}.")
        elif part not in ({}, [], None):
            yield name, _text(part)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return json.dumps(value)


def statuses(results: Results) -> Table:
    """How the trials ended: one row per group."""
    names = [name for name, _ in Counter(results.trials["status"]).most_common()]
    rows: list[dict[str, Any]] = [
        {"sweep": group.sweep, "optimizer": group.optimizer}
        | dict.fromkeys(names, 0)
        | Counter(results.of_group(index)["status"])
        for index, group in enumerate(results.groups)
    ]
    several = len({row["sweep"] for row in rows}) > 1
    columns = (
        Column("sweep", None, "sweep" if several else "", name=True),
        Column("optimizer", None, "optimizer", name=True),
        *(Column(name, None, name) for name in names),
    )
    return Table(columns=columns, rows=rows)


def messages(results: Results) -> list[tuple[str, int]]:
    """What trials said when they ended early, with how many said the like; those that differ in numbers alone count
    together under the first. The most frequent first."""
    said = [text for text in results.trials["message"].fillna("") if text]
    alike: dict[str, list[str]] = {}
    for text in said:
        alike.setdefault(re.sub(r"\d+(\.\d+)?", "0", text), []).append(text)
    counted = [(texts[0], len(texts)) for texts in alike.values()]
    return sorted(counted, key=lambda entry: -entry[1])[:MESSAGES]
