"""Sweeps in this process, one trial after the other: what Ray makes of them, without the seconds that it takes to
start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from cbs.training import run_trial
from sweeps import launch, tuning
from sweeps.cluster import Resources
from sweeps.tuning import Run


def one_after_the_other(run: Run, resources: Resources, namespace: str) -> None:
    """What Ray Tune does for a sweep, in this process and without pruning on the way."""
    while (config := run.search.next()) is not None:
        result = run_trial(config)
        run.store.save(result)
        run.search.add(result)


@contextlib.contextmanager
def without_ray() -> Iterator[None]:
    """Sweeps inside the block run without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "connected", lambda resources: contextlib.nullcontext(""))
        patch.setattr(tuning, "tune_search", one_after_the_other)
        yield
