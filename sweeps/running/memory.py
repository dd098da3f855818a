"""Memory that a training step frees and the next one takes again."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of the parameters in ``malloc.h``."""
_MOST = 2**31 - 1
_KILLS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
"""Where Linux counts the processes that it has killed for their memory."""
_LARGEST_PIECE = 2**25
"""The largest value that the library takes; larger pieces come from the system every time."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to the most it ever needed.

    The GNU C library gives free memory at the end of its heap back to the system, which clears every page that is asked
    for again. At every training step on a processor that is most of the activations: 0 to 20 % of the time of a step.

    Returns:
        Whether it could be done; other C libraries have no such setting.
    """
    return set_thresholds(_LARGEST_PIECE, _MOST)


def set_thresholds(piece: int, free: int) -> bool:
    """Set when the GNU C library takes memory from the system and when it gives it back.

    Args:
        piece: bytes from which a piece comes from the system and goes back there.
        free: bytes that may be free at the end of the heap.

    Returns:
        Whether it could be done.
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
    """How many processes the system has killed so far because memory was full; 0 where it does not say."""
    kills = 0
    for path in _KILLS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills
