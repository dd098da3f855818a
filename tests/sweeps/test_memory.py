import ctypes
import resource
import sys
from pathlib import Path

import pytest

from sweeps.running import worker
from tests import fresh

ROOT = Path(__file__).parents[2]
FAULTS = """
import ctypes, resource, sys
import torch
from sweeps.running.worker import keep_freed_memory

library = ctypes.CDLL(None)
if sys.platform == "linux":
    library.prctl(41, 1, 0, 0, 0)  # no huge pages, of which fewer are asked for
if hasattr(library, "mallopt"):
    library.mallopt(-3, 2**17)  # from here on, every piece comes from the system
kept = sys.argv[1] == "keep" and keep_freed_memory()

def step():
    return sum(float(piece[0]) for piece in [torch.ones(2**18) for _ in range(16)])

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> tuple[bool, int]:
    """Whether freed memory is kept, and pages that ten steps of 16 MB ask the system for."""
    done = fresh.python(FAULTS, ROOT, mode)
    assert done.returncode == 0, done.stderr
    kept, pages = done.stdout.split()
    return kept == "1", int(pages)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no such setting"
)
def test_freed_memory_is_not_asked_for_again() -> None:
    kept, pages = faults("keep")
    assert kept
    every_page = 10 * 16 * 2**20 / resource.getpagesize()
    assert pages < 0.1 * every_page < 0.9 * every_page < faults("not")[1]


def test_processes_that_the_system_killed_for_memory_are_counted(tmp_path, monkeypatch):
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 3\n")
    (tmp_path / "events").write_text("oom 9\noom_kill 2\noom_group_kill 7\n")
    monkeypatch.setattr("sweeps.running.worker._KILLS", (tmp_path / "vmstat", tmp_path / "events", tmp_path / "none"))
    assert worker.killed_for_memory() == 5
