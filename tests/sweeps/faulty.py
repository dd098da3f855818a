"""A workload that does what it is told to at a given step, for the tests that inject faults."""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch

from cbs.trial.config import Choice
from cbs.workloads import Workload, build_workload


def workload(acts: dict[str, str] | None = None, after: int = 12, until: int = 10**9, flag: str = "") -> Workload:
    """The noisy quadratic, until the training stream has given ``after`` batches.

    Args:
        acts: batch size -> what happens at its trials.
        after: steps before it happens.
        until: last step at which it happens.
        flag: file without which it does not happen; what happens ``once`` leaves another beside it.
    """
    base = build_workload(Choice(name="noisy_quadratic", options={"dimension": 100}))
    losses, stream = base.example_losses, base.training_stream
    steps = [0]

    def training_stream(generator: torch.Generator):
        steps[0] = 0
        return stream(generator)

    def example_losses(model, batch):
        found = losses(model, batch)
        steps[0] += 1
        act = (acts or {}).get(str(len(found)))
        if act is None or not after < steps[0] <= until or (flag and not Path(flag).exists()):
            return found
        if act.startswith("once "):
            if Path(f"{flag}-done").exists():
                return found
            Path(f"{flag}-done").touch()
            act = act.removeprefix("once ")
        return ACTS[act](found)

    base.training_stream, base.example_losses = training_stream, example_losses
    return base


def _exit(found):
    print("last words of the workload", file=sys.stderr, flush=True)
    os._exit(3)


def _raise(found):
    raise ValueError("on purpose")


def _memory(found):
    raise MemoryError


def _device_memory(found):
    raise RuntimeError("CUDA error: out of memory\nmore")


def _cramped(found):
    """From now on this process may have 800 MB more than it has, and every example of a pass takes 128 of them."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 800 * 2**20,) * 2)
    torch.empty(len(found) * 2**25)
    return found


ACTS = {
    "cramped": _cramped,
    "hang": lambda found: time.sleep(10_000),
    "segfault": lambda found: ctypes.string_at(0),
    "exit": _exit,
    "sys.exit": lambda found: sys.exit(4),
    "raise": _raise,
    "allocate": lambda found: torch.empty(10**15),
    "memory": _memory,
    "device memory": _device_memory,
    "die": lambda found: os.kill(os.getpid(), signal.SIGKILL),
    "kill the worker": lambda found: os.kill(os.getppid(), signal.SIGKILL),
    "slow": lambda found: time.sleep(0.3) or found,
}
