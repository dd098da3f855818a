"""Several independent random streams from one seed.

The initial weights, the order of the data and anything random inside the training step each draw from their own stream,
so changing one (another learning rate, another probe) leaves the others as they were.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from cbs.compute import device


def derive(seed: int, purpose: str) -> int:
    """Return a 63-bit seed for ``purpose``, independent of the seeds for all other purposes."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    # 63 bits, so that it also fits where a seed is a signed integer.
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, purpose: str) -> torch.Generator:
    """Return a CPU generator for ``purpose``."""
    return torch.Generator().manual_seed(derive(seed, purpose))


@contextmanager
def seeded(seed: int, purpose: str) -> Iterator[None]:
    """Run the block with the global random state set for ``purpose``, and restore it afterwards."""
    before = states()
    start(seed, purpose)
    try:
        yield
    finally:
        set_states(before)


def start(seed: int, purpose: str) -> None:
    """Set the global random state of torch, its devices, numpy and Python for ``purpose``."""
    number = derive(seed, purpose)
    torch.manual_seed(number)
    # numpy's global generator takes no more than 32 bits.
    np.random.seed(number % 2**32)
    random.seed(number)


def states() -> dict[str, Any]:
    """Return the global random state that :func:`start` sets, in tensors and plain values."""
    numpys = np.random.get_state(legacy=False)
    assert isinstance(numpys, dict)
    key = torch.from_numpy(numpys["state"]["key"].astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "devices": device.random_states(),
        "numpy": numpys | {"state": numpys["state"] | {"key": key}},
        "python": random.getstate(),
    }


def set_states(generator_states: dict[str, Any]) -> None:
    """Restore the result of :func:`states`."""
    torch.set_rng_state(generator_states["torch"])
    device.set_random_states(generator_states["devices"])
    numpys = generator_states["numpy"]
    np.random.set_state(numpys | {"state": numpys["state"] | {"key": numpys["state"]["key"].numpy()}})
    random.setstate(generator_states["python"])
