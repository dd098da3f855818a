"""Reuse of memory that one training step frees and the next one needs again."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of these parameters in ``malloc.h``."""
_MOST = 2**31 - 1
_KILLS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
"""Files in which Linux counts the processes that it killed because memory was full."""
_LARGEST_PIECE = 2**25
"""Largest value that glibc accepts; larger allocations are mapped from the system every time."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, up to the most it ever needed.

    The GNU C library returns free memory at the end of its heap to the system, which clears every page that is
    requested again. On a CPU this concerns most of the activations at every training step: 0 to 20 % of the time of a
    step.

    Returns:
        Whether the setting was made; other C libraries have none.
    """
    return set_thresholds(_LARGEST_PIECE, _MOST)


def set_thresholds(piece: int, free: int) -> bool:
    """Set when the GNU C library takes memory from the system and when it returns it.

    Args:
        piece: allocations of this many bytes or more are mapped from the system and returned to it.
        free: bytes that may be free at the end of the heap before they are returned.

    Returns:
        Whether the settings were made.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(
        library.mallopt(ctypes.c_int(parameter), ctypes.c_int(value)) == 1
        for parameter, value in ((_MMAP_THRESHOLD, piece), (_TRIM_THRESHOLD, free))
    )


def killed_for_memory() -> int:
    """Return how many processes the system has killed so far because memory was full; 0 if it does not count them."""
    kills = 0
    for path in _KILLS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills
