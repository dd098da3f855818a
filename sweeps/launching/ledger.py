"""Report what a folder of results holds and whether a sweep is running in it, once or again and again; runs nothing."""

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis.command_options import console
from analysis.formatting import duration, plural
from cbs.errors import CbsError, DamagedError, ResultsError
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store, find_sweeps, remove
from cbs.trial.trial_files import read_record
from sweeps.folder.lock import LOCK, Owner, owner
from sweeps.outlook.progress import table_lines


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """State of one sweep.

    Attributes:
        folder: path of its folder.
        statuses: number of stored trials by status.
        state: ``running``; ``killed`` if the process of the sweep died without cleaning up; otherwise ``idle``.
        owner: the process that runs it: ``host``, ``pid``, ``command``, ``seconds`` since its start and ``silent``,
            seconds since it last touched the folder; ``None`` if it is idle.
        done, planned: numbers of finished and planned trials reported by a running sweep; ``None`` otherwise.
        trials_left, seconds_left: trials and seconds that a running sweep still takes at least; ``None`` if unknown.
        studies: progress of a running sweep at every batch size, see :func:`sweeps.outlook.progress.rows_of`.
        running: running trials by id, with ``step``, ``value``, ``host`` and ``silent``, seconds since their last
            heartbeat.
        failed: messages of failed trials, by id.
        checkpoints: ids of unfinished trials that will resume from a checkpoint.
        left_over: files and folders that ``cbs status --clean`` removes.
        problems: one line for each thing that cannot be read.
        command: the last command that ran in this folder.
    """

    folder: str
    statuses: dict[str, int]
    state: str
    owner: dict[str, Any] | None
    done: int | None
    planned: int | None
    running: dict[str, dict[str, Any]]
    trials_left: int | None = None
    seconds_left: float | None = None
    studies: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    checkpoints: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    command: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the lines to print."""
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.statuses.items())) or "none"
        lines = [f"{self.folder}: {self.state}", f"  trials: {counts}"]
        if self.owner is not None:
            who = f"process {self.owner['pid']} on {self.owner['host']}"
            since = f"started {duration(self.owner['seconds'])} ago, last seen {duration(self.owner['silent'])} ago"
            lines.append(f"  {who}, {since}: {self.owner['command']}")
        if self.planned is not None:
            left = ""
            if self.seconds_left is not None:
                left = f", at least {plural(self.trials_left or 0, 'trial')} and {duration(self.seconds_left)} left"
            lines.append(f"  {self.done} of {self.planned} planned trials done{left}")
        lines += [f"  {line}" for line in table_lines(self.studies, console().width - 2)]
        for trial_id, at in sorted(self.running.items()):
            if at.get("step") is None:
                lines.append(f"  {trial_id}: starting on {at.get('host', 'a node to come')}")
            else:
                value = "" if at.get("value") is None else f": {at['value']:.4g}"
                lines.append(f"  {trial_id}: step {at['step']}{value} on {at['host']}, {duration(at['silent'])} ago")
        lines += [f"  FAILED {trial_id}: {message}" for trial_id, message in sorted(self.failed.items())]
        lines += [f"  {problem}" for problem in self.problems]
        if self.checkpoints:
            lines.append(f"  to resume from checkpoints: {', '.join(self.checkpoints)}")
        if self.left_over:
            lines.append(
                f"  {len(self.left_over)} leftover files; cbs status {self.folder} --clean leftovers removes them"
            )
        if self.state != "running" and self.command:
            lines.append(f"  to continue: {self.command}")
        return lines


def ledgers(path: str | os.PathLike[str]) -> list[Ledger]:
    """Return the state of every sweep at a path.

    Raises:
        ResultsError: if there is no sweep.
    """
    return [ledger(store) for store in find_sweeps(path)]


def ledger(store: Store) -> Ledger:
    """Return the state of one sweep; what cannot be read is listed under ``problems`` instead of raising an error."""
    statuses: Counter[str] = Counter()
    failed, problems, final = {}, [], set()
    for trial_id in store.trial_ids():
        try:
            _, summary = read_record(store.trials / trial_id / "record.parquet")
        except CbsError as error:
            problems.append(error.problem if isinstance(error, DamagedError) else str(error))
            continue
        status = TrialStatus(summary["status"])
        statuses[str(status)] += 1
        if status is TrialStatus.FAILED:
            failed[trial_id] = " ".join(str(summary.get("message", "")).split())
        elif status.final:
            final.add(trial_id)
    command = None
    try:
        runs = store.manifest().get("runs")
        last = runs[-1] if isinstance(runs, list) and runs else {}
        # a run that merged folders into this one has no command that continues it
        command = last.get("command") if isinstance(last, dict) and "merged" not in last else None
    except ResultsError as error:
        problems.append(str(error))
    holder = owner(store.root)
    content: dict[str, Any] = holder.content if holder is not None else {}
    counts = content.get("progress")
    progress: dict[str, Any] = counts if isinstance(counts, dict) else {}
    alive = holder is not None and holder.alive
    waiting = sorted(file.stem for file in (store.root / "checkpoints").glob("*.pt"))
    return Ledger(
        folder=str(store.root),
        statuses=dict(statuses),
        state="idle" if holder is None else "running" if alive else "killed",
        owner=None if holder is None else _owner(holder),
        done=progress.get("done") if alive else None,
        planned=progress.get("planned") if alive else None,
        running=_running(progress, content) if alive else {},
        trials_left=progress.get("trials_left") if alive else None,
        seconds_left=progress.get("seconds_left") if alive else None,
        studies=progress.get("studies", []) if alive else [],
        failed=failed,
        checkpoints=[trial_id for trial_id in waiting if trial_id not in final],
        left_over=[str(path) for path in left_over(store)],
        problems=problems,
        command=command if isinstance(command, str) and command else None,
    )


def left_over(store: Store, *, failed: bool = False) -> list[Path]:
    """Return what is no longer needed: half-written files, damaged ones that were set aside, checkpoints of finished
    trials, the lock of a dead process. Nothing behind a symbolic link is included.

    Args:
        store: store of the sweep; while the sweep runs, nothing counts as left over.
        failed: include the records of failed trials, which the next sweep replaces anyway.
    """
    holder = owner(store.root)
    if holder is not None and holder.alive:
        return []
    paths = [*store.half_written(), *store.damaged()]
    if holder is not None:
        paths.append(store.root / LOCK)
    folder = store.root / "checkpoints"
    checkpoints = {} if folder.is_symlink() else {file.stem: file for file in folder.glob("*.pt")}
    if store.trials.is_symlink():
        return [path for path in paths if path.parent != store.trials]
    for trial_id in store.trial_ids():
        if trial_id not in checkpoints and not failed:
            continue
        try:
            _, summary = read_record(store.trials / trial_id / "record.parquet")
        except CbsError:  # damaged: the next sweep sets it aside and reports it
            continue
        status = TrialStatus(summary["status"])
        if status.final and trial_id in checkpoints:
            paths.append(checkpoints[trial_id])
        if failed and status is TrialStatus.FAILED:
            paths.append(store.trials / trial_id)
    return sorted(set(paths))


def refuse_owner(store: Store) -> None:
    """Check that no sweep is running in a folder.

    Raises:
        ResultsError: if one is; the message names it.
    """
    holder = owner(store.root)
    if holder is not None and holder.alive:
        raise ResultsError(f"{store.root} belongs to a sweep that is running: {holder}; wait for it")


def clean(path: str | os.PathLike[str], *, failed: bool = False) -> list[Path]:
    """Remove everything that :func:`left_over` lists in the sweeps at a path, and return it.

    Args:
        path: a sweep, or a folder of sweeps.
        failed: see :func:`left_over`.

    Raises:
        ResultsError: if there is no sweep, one is running, or something cannot be removed.
    """
    paths: list[Path] = []
    for store in find_sweeps(path):
        refuse_owner(store)
        paths += left_over(store, failed=failed)
    for place in paths:
        remove(place)
    return paths


def _owner(holder: Owner) -> dict[str, Any]:
    content = holder.content
    started = content.get("started")
    age = holder.age + max(0.0, float(content.get("beat", 0.0)) - started) if isinstance(started, float) else 0.0
    said = {key: str(content.get(key, "unknown")) for key in ("host", "pid", "command")}
    return said | {"seconds": age, "silent": holder.age}


def _running(progress: dict[str, Any], content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    beat, running = content.get("beat", 0.0), {}
    for trial_id, at in progress.get("running", {}).items():
        running[trial_id] = {key: at.get(key) for key in ("step", "value", "host") if key in at}
        running[trial_id]["silent"] = max(0.0, beat - at["time"]) if "time" in at else None
    return running


SECONDS = 2.0  # Seconds between two updates on a terminal
LINE_SECONDS = 15.0  # Seconds between two updates if the output is not a terminal


def watch(path: str | os.PathLike[str], console: Console, *, pause: Callable[[float], None] = time.sleep) -> None:
    """Show the sweeps at a path until none of them is running: updated in place on a terminal, else printed again.

    Args:
        path: a sweep, or a folder of sweeps.
        console: console to print on.
        pause: waits for a number of seconds.

    Raises:
        ResultsError: if there is no sweep.
    """
    found = ledgers(path)
    if not console.is_terminal:
        console.print(_text(found), soft_wrap=True)
        while any(entry.state == "running" for entry in found):
            pause(LINE_SECONDS)
            found = ledgers(path)
            console.print(_text(found), soft_wrap=True)
        return
    with Live(_text(found), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while any(entry.state == "running" for entry in found):
            pause(SECONDS)
            found = ledgers(path)
            live.update(_text(found), refresh=True)


def _text(ledgers: list[Ledger]) -> Text:
    return Text("\n".join(line for entry in ledgers for line in entry.lines()), no_wrap=True, overflow="ellipsis")
