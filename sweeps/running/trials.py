"""Run one trial in a child process: :mod:`sweeps.running.child` watches it, its result goes to the store."""

import functools
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cbs.compute.device import pick
from cbs.errors import CbsError, out_of_memory, reason
from cbs.training.noise_scale import UNMEASURED
from cbs.training.parents import KeptCheckpoints, kept_path
from cbs.training.passes import PassTooLarge
from cbs.training.ranks import joined
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import COMMAND, TrialConfig
from cbs.trial.ending import Ending
from cbs.trial.parent import Parent
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.external.run import join_nodes
from sweeps.folder.manifest import TrialBound
from sweeps.running.child import Channel
from sweeps.running.worker import Place, Setup, keep_freed_memory
from sweeps.search.pruning import stops
from sweeps.spec.workload import built

# Shortest time between two heartbeats
REPORT_SECONDS = 0.5


def warm() -> None:
    """Import what importing this module does not: the first step of an optimizer imports a third of torch."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()


def run(
    channel: Channel, setup: Setup, place: Place, trial: dict[str, Any], best_steps: float | None
) -> dict[str, Any]:
    """Run a trial; the process of rank 0 stores its result, if that is final.

    Args:
        channel: receives ``step`` and ``value`` of the trial as heartbeats.
        setup: what all trials of the sweep share.
        place: place of this process among the ranks of the trial.
        trial: the trial as :meth:`cbs.trial.config.TrialConfig.to_dict` returns it.
        best_steps: fewest steps to target of the trial's cell so far.

    Returns:
        ``status``, and ``notes`` for the user; or a status that is not final with its ``message`` and, if a pass did
        not fit into memory, ``too_large``, its number of examples. In addition ``changed``: settings of this process
        that the trial has changed, so that a next trial in the same process would depend on it.

    Raises:
        CbsError: for a problem that every further trial would have too.
    """
    channel.say({"step": None})
    _prepare(setup)
    config = TrialConfig.from_dict(trial)
    watch = Watch(config, channel, TrialBound(setup.store, config.trial_id, best_steps), setup.prune_factor)
    store = Store(setup.store)
    if place.rank and setup.nodes > 1:
        folder = store.root / "runs" / config.trial_id
        return join_nodes(config, folder, setup.path, place.meeting, place.rank, setup.nodes, setup.threads)
    checkpoint = Checkpoint(store.checkpoint_path(config))
    before = settings()
    try:
        if config.workload.name != COMMAND:
            warm()  # in a step, the memory that this takes would be taken for that of the step
            built(config.workload)  # settings that it changes hold for all trials, because it is built once per process
            before = settings()
        result = _result(config, watch, store, checkpoint, setup, place)
    except CbsError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model raises is the outcome of its trial
        return _failure(error) | {"changed": changed(before)}
    notes = checkpoint.notes
    if place.rank == 0:
        store.save(result)
        if result.status.final:
            checkpoint.remove()
        if result.micro_batch_size is not None:
            notes.append(f"passes of {result.micro_batch_size} examples, as more do not fit into memory")
    trial_notes = [f"{config.trial_id}: {note}" for note in notes]
    trial_notes += [
        UNMEASURED + why for _, _, why in [result.message.partition(UNMEASURED)] if why
    ]  # without the trial's id, as it is the same in all trials
    return {"status": str(result.status), "notes": trial_notes, "changed": changed(before)}


class Watch:
    """Sends heartbeats of a trial, and ends it where it can no longer win."""

    def __init__(self, config: TrialConfig, channel: Channel, bound: TrialBound, prune_factor: float | None) -> None:
        self._config, self._channel, self._bound, self._prune_factor = config, channel, bound, prune_factor
        self._value: float | None = None
        self._said = -REPORT_SECONDS

    def alive(self, step: int) -> None:
        """Send a heartbeat, at most once every :data:`REPORT_SECONDS`."""
        now = time.monotonic()
        if now - self._said >= REPORT_SECONDS:
            self._said = now
            self._channel.say({"step": step, "value": self._value, "time": time.time()})

    def monitor(self, rows: Sequence[Measurement]) -> Ending | None:
        """Return how the trial ends if it is beyond its pruning bound, or will not reach its target."""
        self._value = rows[-1].value
        return stops(self._config, rows, self._bound.steps, self._prune_factor)


def _result(
    config: TrialConfig, watch: Watch, store: Store, checkpoint: Checkpoint, setup: Setup, place: Place
) -> TrialResult:
    if config.workload.name == COMMAND:
        from sweeps.external.run import run_command

        folder = store.root / "runs" / config.trial_id
        return run_command(
            config,
            folder,
            path=setup.path,
            launch=setup.launch,
            nodes=setup.nodes,
            meeting=place.meeting,
            threads=setup.threads,
            monitor=watch.monitor,
            alive=watch.alive,
        )
    device = pick(config.device, config.precision, place.rank)
    with joined(place.rank, setup.workers, place.meeting, device, setup.silence, setup.shard) as ranks:
        return run_trial(
            config,
            workload=built(config.workload),
            monitor=watch.monitor,
            checkpoint=checkpoint,
            alive=watch.alive,
            most=place.most,
            ranks=ranks,
            parent=None if config.parent is None else checkpoint_of(config.parent, store, Path(setup.path)),
            kept=KeptCheckpoints(store.kept_folder(config.fingerprint), setup.keep) if setup.keep else None,
        )


def checkpoint_of(parent: Parent, store: Store, path: Path) -> Path:
    """Return the path of a parent's checkpoint: in the folder of results, or the given path relative to ``path``."""
    if parent.trunk is None:
        return path / parent.source
    return kept_path(store.kept_folder(parent.trunk), parent.examples)


def _failure(error: BaseException) -> dict[str, Any]:
    if out_of_memory(error):
        too_large = {"too_large": error.examples} if isinstance(error, PassTooLarge) else {}
        return {"status": str(TrialStatus.OUT_OF_MEMORY), "message": reason(error), **too_large}
    traceback.print_exc()
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {reason(error)} ({frame.filename}:{frame.lineno})"
    return {"status": str(TrialStatus.FAILED), "message": what}


@functools.cache
def _prepare(setup: Setup) -> None:
    torch.set_num_threads(setup.threads)
    keep_freed_memory()
    sys.path.insert(0, setup.path)


def settings() -> dict[str, Any]:
    """Return the settings of torch and numpy on which results depend, by the function that sets them."""
    kernels: Any = torch.backends.cudnn
    products: Any = (torch.backends.cuda, torch.backends.mkldnn)
    return {
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.set_default_device": torch.get_default_device(),
        "torch.set_grad_enabled": torch.is_grad_enabled(),
        "torch.set_num_threads": torch.get_num_threads(),
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.set_float32_matmul_precision": [backend.matmul.fp32_precision for backend in products],
        "torch.backends.cudnn": (kernels.enabled, kernels.benchmark, kernels.deterministic, kernels.allow_tf32),
        "numpy.seterr": np.geterr(),
    }


def changed(before: dict[str, Any]) -> list[str]:
    """Return the functions whose settings have changed since ``before``."""
    return [name for name, value in settings().items() if value != before[name]]
