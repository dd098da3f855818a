"""Sweeps in this process, one trial after the other: what Ray makes of them, without the seconds that it takes to
start; and what is asked of a child, without those in which it imports torch."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cbs.errors import CbsError, reason
from cbs.training.parents import KeptCheckpoints
from cbs.training.run import run_trial
from sweeps.launching import launch
from sweeps.running import child, cluster, patience, tuning
from sweeps.running.child import Failed
from sweeps.running.cluster import PrestartedRay
from sweeps.running.resources import Resources
from sweeps.running.run import Runs
from sweeps.running.trials import checkpoint_of
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep


def swept(sweep: Sweep, folder: Path, *, resources: Resources | None = None, **named: Any) -> Search:
    """Run a single sweep, and return its search."""
    runs = Runs(launch.sweep(sweep, folder, **named))
    return tuning.run_all(runs, resources or Resources())


def one_after_the_other(runs: Runs[Any], resources: Resources, ahead: PrestartedRay | None) -> None:
    """What Ray Tune does for a sweep, in this process and without pruning on the way."""
    run = runs.run
    run.search.workers = resources.workers or 1
    while (config := run.search.next()) is not None:
        parent, folder = config.parent, run.store.kept_folder(config.fingerprint)
        path = None if parent is None else checkpoint_of(parent, run.store, Path.cwd())
        kept = KeptCheckpoints(folder, run.search.sweep.start.keep) if run.search.sweep.start.keep else None
        result = run_trial(config, parent=path, kept=kept)
        run.store.save(result)
        run.search.add(result)


@contextlib.contextmanager
def without_ray() -> Iterator[None]:
    """Sweeps inside the block run without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "run_search", one_after_the_other)
        yield


class ChildHere:
    """Stands for :class:`sweeps.running.child.Child` where what is said to a person is tested: its functions run in
    this process."""

    def __init__(self, first: str | None = None) -> None:
        self.first = first

    def __enter__(self) -> "ChildHere":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(
        self,
        function: str,
        *args: Any,
        heard: Callable[[Any], None] = lambda message: None,
        silence: float | None = None,
    ) -> Any:
        module, _, name = function.partition(":")
        path = list(sys.path)
        try:
            return getattr(importlib.import_module(module), name)(SimpleNamespace(say=heard), *args)
        except CbsError:
            raise
        except Exception as error:  # noqa: BLE001 - as a child tells it
            raise Failed(f"{type(error).__name__}: {reason(error)}") from None
        finally:
            sys.path[:] = path


def children_here(patch: pytest.MonkeyPatch) -> None:
    """From here on children are none of their own, and no Ray is started ahead, which takes ten seconds of a core."""
    patch.setattr(cluster, "PrestartedRay", lambda *_: contextlib.nullcontext())
    for module in (child, patience):  # imported before: what is imported while one is patched keeps it
        patch.setattr(module, "Child", ChildHere)
