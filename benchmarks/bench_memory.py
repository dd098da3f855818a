"""A training step of the embedded models on a processor, where freed memory is kept and where it is not. One thread.

The setting holds for a process, so each candidate sets it before its step; the other one is that of the GNU C library
after it has seen pieces of 2 MB.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from bench_noise_scale import build, loss
from interleaved import measure, table

from cbs.workloads.text_parts.gpt import SIZES
from sweeps.running.memory import keep_freed_memory, set_thresholds


def give_back() -> None:
    """What the library does by itself: it gives back twice the largest piece that it took from the system."""
    set_thresholds(2**21, 2**22)


def stepper(size: str, batch_size: int, setting: Callable[[], object]) -> Callable[[], None]:
    model, optimizer, batch = build(SIZES[size], batch_size)

    def step() -> None:
        setting()
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    torch.set_num_threads(1)
    for size, batch_size in (("30k", 16), ("30k", 64), ("30k", 256), ("200k", 128), ("3m", 16)):
        candidates = {
            "given back": stepper(size, batch_size, give_back),
            "kept": stepper(size, batch_size, keep_freed_memory),
        }
        print(f"\n{size}, batch of {batch_size}: one training step")
        print(table(measure(candidates, rounds=15, seconds=0.3, clock=time.process_time), "given back"))


if __name__ == "__main__":
    main()
