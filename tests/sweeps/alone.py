"""Sweeps in this process, one trial after the other: what Ray makes of them, without the seconds that it takes to
start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from cbs.training import run_trial
from sweeps.running import dispatch
from sweeps.running.ahead import Ahead
from sweeps.running.cluster import Resources
from sweeps.running.dispatch import Run


def one_after_the_other(run: Run, resources: Resources, ahead: Ahead | None) -> None:
    """What Ray Tune does for a sweep, in this process and without pruning on the way."""
    while (config := run.search.next()) is not None:
        result = run_trial(config)
        run.store.save(result)
        run.search.add(result)


@contextlib.contextmanager
def without_ray() -> Iterator[None]:
    """Sweeps inside the block run without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "run_search", one_after_the_other)
        yield
