"""One seed, several independent random streams.

The initial weights, the order of the data and anything random inside the training step each draw from their own stream,
so changing one (another learning rate, another probe) leaves the others as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cbs import device


def derive(seed: int, purpose: str) -> int:
    """A 63-bit seed for ``purpose``, independent of the seeds of all other purposes."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for ``purpose``."""
    return torch.Generator().manual_seed(derive(seed, purpose))


@contextmanager
def seeded(seed: int, purpose: str) -> Iterator[None]:
    """Run a block with torch's global random state set for ``purpose`` and restored afterwards."""
    states = device.random_states()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, purpose))
        try:
            yield
        finally:
            device.set_random_states(states)
