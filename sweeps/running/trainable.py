"""A trial as Ray Tune runs it: its results are heartbeats, the last one says how it ended. Does not import torch."""

import contextlib
import functools
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.result import NODE_IP, PID, TRIAL_ID
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cbs.errors import CbsError, reason
from cbs.trial.record import TrialStatus
from sweeps.running.child import Child
from sweeps.running.worker import Setup, Worker

TURN = 0.5  # Seconds between two heartbeats of a worker; a trial waits no longer for one that is idle


def _nodes(setup: Setup) -> tuple[str, list[Callable[[], Any]]]:
    """Return the address of this node, the first of each trial, and what makes a process on each of the others."""
    if setup.nodes == 1:
        return "localhost", []
    group = ray.util.get_current_placement_group()
    return ray.util.get_node_ip_address(), [functools.partial(Seat, group, rank) for rank in range(1, setup.nodes)]


class Trainable(tune.Trainable):
    """Runs one trial; the actor is then reused for the next.

    The configuration has ``setup`` (:class:`sweeps.running.worker.Setup`), ``trial`` (:meth:`TrialConfig.to_dict` as a
    JSON string, because Tune copies a dictionary repeatedly and keeps the copies; ``None`` for a worker that waits for
    one) and ``best_steps``, the fewest steps to target of the trial's cell so far.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._worker = Worker(config["setup"], *_nodes(config["setup"]))
        self._thread = ThreadPoolExecutor(1)
        self._answer: Future[dict[str, Any]] | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True

    def step(self) -> dict[str, Any]:
        """Return where the trial is or, once it is over, what :meth:`sweeps.running.worker.Worker.run` returned."""
        if self.config["trial"] is None:
            time.sleep(TURN)
            return {"done": False}
        if self._answer is None:
            trial = json.loads(self.config["trial"])
            self._answer = self._thread.submit(self._worker.run, trial, self.config["best_steps"])
        try:
            answer = self._answer.result(TURN)
        except StillRunning:
            return {"done": False, "where": [self._worker.where()]}  # a list, from which Tune collects no numbers
        self._answer = None
        return {"done": True, **answer}

    def get_auto_filled_metrics(self, *args: Any, **named: Any) -> dict[str, Any]:
        """Return only what Tune needs, because Tune keeps the last result of every trial with its configuration, and
        statistics of all numbers in it: a third of what a trial costs the driver process."""
        filled = super().get_auto_filled_metrics(*args, **named)
        return {key: filled[key] for key in (TRIAL_ID, PID, NODE_IP)}

    def cleanup(self) -> None:
        self._worker.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing for Tune: a long trial saves its state in the results folder."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """See :meth:`save_checkpoint`."""


class _Holder:
    """A child process on the node of this actor; ``kill`` is called while ``call`` waits."""

    def __init__(self) -> None:
        self._child = Child()

    def call(self, function: str, args: tuple[Any, ...]) -> Any:
        try:
            return self._child.call(function, *args)
        except CbsError as error:  # as a value, because its class may not survive the way back
            return {"status": str(TrialStatus.FAILED), "message": str(error)}

    def kill(self) -> None:
        self._child.kill()


class Seat:
    """A child process on another node, with the methods of :class:`sweeps.running.child.Child` that a worker uses.

    Args:
        group: placement group of the trial.
        rank: index of the bundle.
    """

    def __init__(self, group: PlacementGroup, rank: int) -> None:
        bundle = {name: amount for name, amount in group.bundle_specs[rank].items() if name in ("CPU", "GPU")}
        node = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        holder = ray.remote(_Holder).options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            max_concurrency=2,
            scheduling_strategy=node,
        )
        self._actor, self._rank = holder.remote(), rank

    def call(self, function: str, *args: Any, heard: Callable[[Any], None], silence: float | None = None) -> Any:
        """Run a function there and return its result, or a failed trial's. Nothing is heard of it meanwhile, and it may
        be silent: the first node is heard for all."""
        try:
            return ray.get(self._actor.call.remote(function, args))
        except RayError as error:
            return {"status": str(TrialStatus.FAILED), "message": f"node {self._rank} is lost: {reason(error)}"}

    def kill(self) -> None:
        with contextlib.suppress(RayError):
            ray.get(self._actor.kill.remote(), timeout=10)

    def close(self) -> None:
        self.kill()
        ray.kill(self._actor)
