"""Files that describe the sweep in a folder of results: its manifest, its lock, and the bounds of its trials.

A process that holds a folder is told from all others, dead ones too, by what :func:`described` says of it. Who only
asks that imports no more of a sweep.
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def described(pid: int | None = None) -> dict[str, Any]:
    """Return what a process is recognized by: ``host``, ``pid``, ``machine``, ``born``.

    Args:
        pid: its number; ``None`` for this process.
    """
    pid = os.getpid() if pid is None else pid
    return {"host": platform.node(), "pid": pid, "machine": _machine(), "born": _born(pid)}


def lives(owner: Mapping[str, Any]) -> bool | None:
    """Return whether a :func:`described` process lives; ``None`` if that cannot be known here: it runs on another
    machine or in another process namespace, or is not described."""
    machine = _machine()
    if machine is None or owner.get("machine") != machine:
        return None
    return owner.get("born") is not None and owner["born"] == _born(owner.get("pid"))


def _machine() -> str | None:
    """Return what identifies the processes that share process ids: boot and process namespace of the system; ``None``
    if ``/proc`` shows another namespace than this process is in."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        if os.readlink("/proc/self") != str(os.getpid()):
            return None
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return platform.node()


def _born(pid: Any) -> str | None:
    """Return when a process was started, in the system's units; ``None`` if there is no such process."""
    try:
        # starttime, field 22 of proc(5): behind the name, which may hold blanks, the first is the state, field 3
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[19]
    except (TypeError, ValueError):
        return None
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return "alive"
    except OSError:
        return None
    return "alive"
