"""Shared fixtures: one thread, and one local Ray for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sweeps.cluster import Resources, connected


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One private Ray with two workers, started by the first test that needs it."""
    with connected(Resources(workers=2)):
        yield
