"""A ``cbs sweep`` command that adds trials to an existing sweep: the earlier command with other axes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbs.store import Store

_SWITCHES = ("--dry-run", "--json")
_AXES = ("--optim", "--batch-sizes", "--lrs", "--seeds", "--output")


def adding(
    folder: Path, optimizer: str, batch_sizes: Sequence[int], seeds: Sequence[int], lrs: Sequence[float] | None
) -> str:
    """A line for the shell; empty where the sweep was not run by ``cbs sweep``.

    Recipe, target, workload and settings are those of the latest command that ran this optimizer, so the protocol is
    the same and the trials join those that are there.

    Args:
        folder: of the sweep.
        optimizer: its name.
        batch_sizes: examples per step.
        seeds: all of them, with those that are there.
        lrs: ``None`` for a search.

    Raises:
        ResultsError: if the folder is not a sweep.
    """
    manifest = Store(folder).manifest()
    commands = [] if manifest.get("imported") else _commands(manifest)
    earlier = [options for text in commands if (options := parsed(text)) is not None]
    if not earlier:
        return ""
    mine = [options for options in earlier if optimizer in _values(options, "--optim")]
    kept = [pair for pair in (mine or earlier)[-1] if pair[0] not in (*_AXES, *_SWITCHES)]
    others = [name for options in earlier for name in _values(options, "--optim") if name != optimizer]
    kept = [pair for pair in kept if not (pair[0] == "--set" and _sets_one_of(pair[1], others, optimizer))]
    words = ["cbs", "sweep", *(word for pair in kept for word in pair)]
    words += ["--optim", optimizer, "--batch-sizes", ",".join(map(str, batch_sizes))]
    # a single number would be a count
    words += ["--seeds", f"{seeds[0]}," if len(seeds) == 1 else ",".join(map(str, seeds))]
    words += [] if lrs is None else ["--lrs", ",".join(map(repr, lrs))]
    return shlex.join([*words, "--output", str(folder)])


def parsed(command: str) -> list[tuple[str, str]] | None:
    """Options of a ``cbs sweep`` command with their values, long names; ``None`` if it is no such command."""
    words = shlex.split(command)
    if "sweep" not in words[1:2]:
        return None
    found, rest = [], iter(words[2:])
    for word in rest:
        name, equals, value = word.partition("=")
        if word in _SWITCHES:
            found.append((word, ""))
        elif word.startswith("-o") and not word.startswith("--"):
            found.append(("--output", word[2:] or next(rest, "")))
        else:
            found.append((name, value if equals else next(rest, "")))
    return found


def _commands(manifest: dict[str, Any]) -> list[str]:
    runs = manifest.get("runs")
    found = [run.get("command") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    return [text for text in found if isinstance(text, str)]


def _values(options: list[tuple[str, str]], name: str) -> list[str]:
    return [value for option, value in options if option == name]


def _sets_one_of(setting: str, others: Sequence[str], optimizer: str) -> bool:
    """Whether ``--set`` changes an option of another optimizer; names of libraries hold a dot (``torch.adam.eps``)."""
    if setting.startswith(f"{optimizer}."):
        return False
    return any(setting.startswith(f"{name}.") for name in others)
