"""Processes of a trial on further nodes: the children of a worker, held by actors of Ray in the other bundles of the
trial's placement group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cbs.errors import CbsError, reason
from cbs.trial.record import TrialStatus
from sweeps.running.child import Child


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
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        holder = ray.remote(_Holder).options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            max_concurrency=2,
            scheduling_strategy=place,
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
