"""``sweep.json``: what was asked for, by which software, on which machine; enough to repeat it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbs
from cbs import device
from cbs.choices import Choice
from cbs.config import CONSTANT
from cbs.errors import ConfigError, ResultsError, reason
from cbs.store import MANIFEST, Store
from sweeps.spec import Sweep
from sweeps.workload import COMMAND, built

_PACKAGES = ("torch", "ray", "numpy", "pyarrow")


def merged_manifest(store: Store, sweep: Sweep, command: str) -> dict[str, Any]:
    """The manifest of a sweep, joined with the one its folder holds already.

    Axes grow (another optimizer, or one with other options, more seeds); the protocol and the data must be the same.

    Raises:
        ResultsError: if the folder holds a sweep of another protocol, another data set or another schema.
    """
    data_hash = None if sweep.workload.name == COMMAND else built(sweep.workload).data_hash
    manifest: dict[str, Any] = {
        "name": sweep.name,
        "protocol": sweep.protocol(),
        "data_hash": data_hash,
        "axes": sweep.axes(),
        "runs": [provenance(command)],
    }
    if not (store.root / MANIFEST).exists():
        if trials := store.trial_ids():
            raise ResultsError(
                f"{store.root} holds {len(trials)} trials but no {MANIFEST}, which says by what protocol they ran: put "
                "it back, or choose another folder with --output"
            )
        return manifest
    stored = store.manifest()
    stored.pop("schema_version")
    # once a part of the protocol, one set of options for every name
    protocol = stored.get("protocol")
    if not isinstance(protocol, dict):
        raise ResultsError(
            f"{store.root / MANIFEST} has no protocol; put it back, or choose another folder with --output"
        )
    options = protocol.pop("optimizer_options", {})
    difference = _first_difference(protocol, manifest["protocol"])
    if difference is not None:
        raise ResultsError(f"{store.root} holds a sweep with {difference}; choose another folder with --output")
    if stored.get("data_hash") != data_hash:
        raise ResultsError(
            f"{store.root} holds trials on other data (hash {stored.get('data_hash')}, now {data_hash}; the embedded "
            "text differs between Python versions); choose another folder with --output"
        )
    try:
        there = [str(Choice(name=name, options=options.get(name, {}))) for name in stored["axes"]["optimizers"]]
        manifest["axes"] = _union(stored["axes"] | {"optimizers": there}, manifest["axes"])
        manifest["runs"] = [*stored["runs"], *manifest["runs"]]
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ResultsError(f"{store.root / MANIFEST} is no plan of a sweep ({reason(error)}); put it back") from None
    return manifest


def provenance(command: str) -> dict[str, Any]:
    """When, with what and where: command, time, versions, hardware, git commits."""
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "cbs": cbs.__version__, **_versions()},
        "hardware": hardware(),
        "git": {"cbs": git_commit(Path(cbs.__file__).parent), "working_directory": git_commit(Path.cwd())},
    }


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and GPUs of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "gpus": device.names(),
    }


def git_commit(folder: Path) -> str | None:
    """Commit of the repository around ``folder``, with ``-dirty`` where files differ from it; ``None`` outside one."""
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
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _first_difference(stored: Any, wanted: Any, path: str = "") -> str | None:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted({*stored, *wanted}):
            found = _first_difference(stored.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
        return None
    return None if stored == wanted else f"{path} = {stored}, not {wanted}"


def _union(stored: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    if "batch_schedules" in stored or "batch_schedules" in wanted:
        before, now = (axes.get("batch_schedules", [CONSTANT]) for axes in (stored, wanted))
        merged["batch_schedules"] = list(dict.fromkeys([*before, *now]))
    for axis in ("optimizers", "batch_sizes", "lrs", "seeds"):
        before, now = stored.get(axis), wanted[axis]
        if before is None or now is None:
            merged[axis] = None
        else:
            joined = [*before, *(value for value in now if value not in before)]
            merged[axis] = joined if axis == "optimizers" else sorted(joined)
    return merged
