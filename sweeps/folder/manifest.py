"""``sweep.json``: what was requested, with which software and on which machine, enough to repeat it.

And ``bounds.json``, which tells running trials on every node their pruning bound.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import cbs
from cbs.compute import device, seeding
from cbs.errors import ConfigError, ResultsError, reason
from cbs.files import atomic_file
from cbs.registry.choices import parse_choice
from cbs.trial.config import COMMAND, CONSTANT
from cbs.trial.record import TrialResult
from cbs.trial.store import MANIFEST, Store, remove
from cbs.workloads import Workload
from sweeps.search.search import Observer, Search
from sweeps.spec.axes import Cell
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built

_PACKAGES = ("torch", "ray", "numpy", "pyarrow")
_NUMERIC = ("cbs", "torch", "numpy")  # Packages that determine the numbers of a trial
_EXAMPLES = 64  # Number of examples that are hashed if a workload does not identify its data


def merged_manifest(store: Store, sweep: Sweep, command: str) -> dict[str, Any]:
    """Return the manifest of a sweep, merged with the one that its folder already holds.

    Axes may grow (another optimizer, or one with other options, more seeds); the protocol and the data must be the
    same. If earlier runs used other code, the entry of this run says what changed (``code_changes``) and which trials
    are older (``earlier_trials``).

    Raises:
        ResultsError: if the folder holds a sweep with another protocol, data set or schema.
    """
    data_hash = None if sweep.trial.workload.name == COMMAND else built(sweep.trial.workload).data_hash
    manifest: dict[str, Any] = {
        "name": sweep.name,
        "protocol": sweep.protocol(),
        "data_hash": data_hash,
        "axes": sweep.axes.to_json(),
        "runs": [provenance(command) | ({"code": code} if (code := own_code(sweep)) else {})],
    }
    if sweep.search.warm_start:
        manifest["warm_start"] = {text: prior.to_json() for text, prior in sweep.search.warm_start.items()}
    if not (store.root / MANIFEST).exists():
        if trials := store.trial_ids():
            raise ResultsError(
                f"{store.root} holds {len(trials)} trials but no {MANIFEST}, which holds their protocol: restore "
                "it, or choose another folder with --output"
            )
        return manifest
    if store.manifest().get("imported"):
        raise ResultsError(f"{store.root} holds imported runs, whose protocol is unknown; choose another --output")
    stored = plan_of(store)
    changed = difference(stored["protocol"], manifest["protocol"])
    if changed is not None:
        field, there, asked = changed
        raise ResultsError(
            f"{store.root} holds a sweep with {field} = {there}, not {asked}; choose another folder with --output"
        )
    if stored["data_hash"] != data_hash:
        raise ResultsError(
            f"{store.root} holds trials on different data (hash {stored['data_hash']}, now {data_hash}; the embedded "
            "text differs between Python versions); choose another folder with --output"
        )
    manifest["axes"] = union(stored["axes"], manifest["axes"], store.root)
    (run,) = manifest["runs"]
    if changes := code_changes(latest_run(stored["runs"]), run):
        run |= {"code_changes": changes, "earlier_trials": store.trial_ids()}
    manifest["runs"] = [*stored["runs"], run]
    if starts := manifest.get("warm_start", {}) | (stored.get("warm_start") or {}):
        manifest["warm_start"] = starts
    return manifest


def plan_of(store: Store) -> dict[str, Any]:
    """Return the content of ``sweep.json`` of a sweep that was run, without its schema version.

    Raises:
        ResultsError: if it cannot be read, or does not describe a sweep.
    """
    path = store.root / MANIFEST
    stored = store.manifest()
    stored.pop("schema_version")
    protocol = stored.get("protocol")
    if not isinstance(protocol, dict):
        raise ResultsError(f"{path} has no protocol; restore it, or choose another folder with --output")
    try:
        union(stored["axes"], stored["axes"])
        return stored | {"runs": [{**run} for run in stored["runs"]], "data_hash": stored.get("data_hash")}
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ResultsError(f"{path} does not describe a sweep ({reason(error)}); restore it") from None


def provenance(command: str) -> dict[str, Any]:
    """Return when, with what and where a command runs: command, time, versions, hardware, git commits."""
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "cbs": cbs.__version__, **_versions()},
        "hardware": hardware(),
        "git": {"cbs": git_commit(Path(cbs.__file__).parent), "working_directory": git_commit(Path.cwd())},
    }


def latest_run(runs: Sequence[Any]) -> dict[str, Any]:
    """Return the last entry of ``runs`` under which trials were run; an empty dictionary if there is none."""
    return next((run for run in reversed(runs) if isinstance(run, dict) and "merged" not in run), {})


def code_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences between two entries of ``runs`` in code that determines results, as ``torch 2.8.0, then
    2.9.0``. What is missing in one of them does not count as a difference."""

    def code_of_run(run: dict[str, Any]) -> dict[str, str]:
        parts = [run.get(key) for key in ("versions", "git", "code")]
        versions, git, code = (part if isinstance(part, dict) else {} for part in parts)
        facts = {name: versions.get(name) for name in _NUMERIC} | {"commit of cbs": git.get("cbs")} | code
        return {name: str(value) for name, value in facts.items() if value}

    old, new = code_of_run(before), code_of_run(now)
    return [f"{name} {old[name]}, then {new[name]}" for name in old if name in new and old[name] != new[name]]


def all_code_changes(store: Store) -> list[str]:
    """Return all code changes between the runs of a folder, see :func:`merged_manifest`."""
    runs = plan_of(store)["runs"] if (store.root / MANIFEST).exists() else []
    return [change for run in runs for change in run.get("code_changes", [])]


def own_code(sweep: Sweep) -> dict[str, str]:
    """Return hashes (16 digits of SHA-256) of the user's own code: source of every module that a sweep names and of the
    files that its command names, and the first examples of an own workload that does not identify its data."""
    names = [choice.name for choice in (sweep.trial.workload, *sweep.axes.optimizers, *sweep.axes.batch_schedules)]
    options = sweep.trial.workload.options if sweep.trial.workload.name == COMMAND else {}
    modules = {name.partition(":")[0] for name in (*names, options.get("function", "")) if ":" in name}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules)}
    files |= {word: word for word in shlex.split(options.get("command", "")) if word.endswith(".py")}
    there = {name: Path(file) for name, file in files.items() if file and Path(file).is_file()}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in there.items()}
    if ":" in sweep.trial.workload.name and built(sweep.trial.workload).data_hash is None:
        hashes[f"first examples of {sweep.trial.workload.name}"] = _examples_hash(built(sweep.trial.workload))
    return hashes


def _examples_hash(workload: Workload) -> str:
    with seeding.seeded(0, "look"):
        batch = workload.training_stream(seeding.generator(0, "data")).next(_EXAMPLES)
    digest = hashlib.sha256()
    for leaf in tree_leaves(batch):
        digest.update(str(leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf).encode())
    return digest.hexdigest()[:16]


def hardware() -> dict[str, Any]:
    """Return processor, cores, memory and GPUs of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "gpus": device.names(),
    }


def git_commit(folder: Path) -> str | None:
    """Return the commit of the repository around ``folder``, with ``-dirty`` if files differ from it; ``None`` if there
    is none."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def difference(stored: Any, wanted: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first field in which two protocols differ, with both values; ``None`` if they are equal."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted({*stored, *wanted}):
            inner = difference(stored.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if inner:
                return inner
        return None
    return None if stored == wanted else (path, stored, wanted)


def union(stored: dict[str, Any], wanted: dict[str, Any], where: Path | str = "the folder") -> dict[str, Any]:
    """Return the union of the axes of two sweeps.

    Raises:
        ResultsError: if an optimizer is in both, with different tuned options.
    """
    tuned, now_tuned = (axes.get("tuned", {}) for axes in (stored, wanted))
    names = [{parse_choice(text).name for text in axes["optimizers"]} for axes in (stored, wanted)]
    for name in sorted(names[0] & names[1]):
        there, asked = (", ".join(options.get(name, [])) or "nothing" for options in (tuned, now_tuned))
        if there != asked:
            raise ResultsError(
                f"{where} holds trials of {name} with {there} tuned in addition to the learning rate, "
                f"not {asked} (--axis); choose another folder with --output"
            )
    merged: dict[str, Any] = {"tuned": tuned | now_tuned} if tuned or now_tuned else {}
    if "batch_schedules" in stored or "batch_schedules" in wanted:
        before, now = (axes.get("batch_schedules", [CONSTANT]) for axes in (stored, wanted))
        merged["batch_schedules"] = list(dict.fromkeys([*before, *now]))
    for axis in ("lr_rule", "budgets"):
        if axis in stored or axis in wanted:
            merged[axis] = list(dict.fromkeys([*stored.get(axis, []), *wanted.get(axis, [])]))
    for axis in ("optimizers", "batch_sizes", "lrs", "seeds"):
        before, now = stored.get(axis), wanted.get(axis)
        if before is None or now is None:
            merged[axis] = None
        else:
            joined = [*before, *(value for value in now if value not in before)]
            merged[axis] = joined if axis == "optimizers" else sorted(joined)
    return merged


BOUNDS = "bounds.json"
"""File that maps trial id to the fewest steps to target of its cell, for trials whose cell improved while they ran."""

LOOK_SECONDS = 0.5  # Shortest time between two reads of the file by a trial


class Bounds(Observer):
    """The driver's side: tells the running trials of a cell when its fewest steps to target have become fewer."""

    def __init__(self, store: Store) -> None:
        self._path = store.root / BOUNDS
        self._told: dict[str, float] = {}
        remove(self._path)

    def finished(self, result: TrialResult, search: Search) -> None:
        """Write the new bound if the trial improved its cell; see the base class.

        Raises:
            ResultsError: if the file cannot be written.
        """
        cell, steps = Cell.of(result.config), result.steps_to_target
        if steps is None or steps != search.best_steps(cell):
            return
        better = {trial_id: steps for trial_id, (other, _) in search.running.items() if other == cell}
        if better:
            self._told = {key: value for key, value in self._told.items() if key in search.running} | better
            with atomic_file(self._path) as draft:
                draft.write_text(json.dumps(self._told))

    def ended(self, search: Search) -> None:
        remove(self._path)


class TrialBound:
    """The side of one trial: reads its pruning bound.

    Args:
        store: folder of the sweep.
        trial_id: id of the trial.
        steps: fewest steps of its cell when it was started, if any.
    """

    def __init__(self, store: str, trial_id: str, steps: float | None) -> None:
        self._path, self._trial_id, self._steps = Path(store) / BOUNDS, trial_id, steps
        self._looked, self._seen = -LOOK_SECONDS, 0

    @property
    def steps(self) -> float | None:
        """Fewest steps of the cell, as far as known to this process."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        return self._steps

    def _look(self) -> None:
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._seen:
                return
            steps = json.loads(self._path.read_text()).get(self._trial_id)
        except (
            OSError,
            ValueError,
            AttributeError,
            RecursionError,
        ):  # it does not exist, or is being replaced on a slow file system
            return
        self._seen = changed
        if isinstance(steps, int | float):
            self._steps = float(steps)
