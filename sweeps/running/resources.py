"""What a sweep runs on: the machine or cluster, and what each trial may use of it."""

import math
import os
from dataclasses import dataclass

from cbs.errors import ConfigError
from sweeps.spec.combinations import refuse


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The machine or cluster on which a sweep runs, and what each trial may use of it.

    Attributes:
        workers: largest number of trials at a time; ``None`` for as many as the machine or cluster can hold.
        workers_per_trial: number of processes that train one trial together, each on a device of its own, all on one
            node.
        shard: whether each of these processes holds only a part of the model.
        cpus_per_trial: number of cores, and of torch threads, of each of these processes.
        gpus_per_trial: number of GPUs, or share of one, that a trial takes; ``None`` for one per worker if there are
            any. An external command may take several; a trial trained by this package takes at most one per worker.
        nodes_per_trial: number of nodes of a cluster on which a trial's command is started at once, with the cores and
            GPUs of a trial on each.
        launch: line that starts the command of a trial as a job elsewhere, see :class:`sweeps.external.run.Job`; such a
            trial takes nothing here.
        address: address of a running Ray cluster (``"auto"`` to find it); ``None`` starts a private one.
        insecure: whether a cluster is used even if it asks nobody for a token.
        trial_timeout: seconds without a step or an evaluation after which a trial is stopped; ``None`` to derive it
            from the plan with :func:`sweeps.running.patience.patience`.
    """

    workers: int | None = None
    workers_per_trial: int = 1
    shard: bool = False
    cpus_per_trial: int = 1
    gpus_per_trial: float | None = None
    nodes_per_trial: int = 1
    launch: str = ""
    address: str | None = None
    insecure: bool = False
    trial_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"the number of workers must be at least 1, got {self.workers}")
        if self.workers_per_trial < 1:
            raise ConfigError(f"workers per trial must be at least 1, got {self.workers_per_trial}")
        if self.nodes_per_trial < 1:
            raise ConfigError(f"nodes per trial must be at least 1, got {self.nodes_per_trial}")
        if self.cpus_per_trial < 1:
            raise ConfigError(f"cpus per trial must be at least 1, got {self.cpus_per_trial}")
        cores, gpus = os.cpu_count() or 1, self.gpus_per_trial
        if gpus is not None and not 0 <= gpus < math.inf:
            raise ConfigError(f"gpus per trial must be a number of at least 0, got {gpus}")
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise ConfigError(f"gpus per trial must be a whole number above 1, got {gpus}")
        if self.trial_timeout is not None and not self.trial_timeout > 0:
            raise ConfigError(f"the timeout of a trial must be above 0 seconds, got {self.trial_timeout}")
        if self.address is None and self.cpus > cores:
            raise ConfigError(f"a trial of {self.cpus} cores does not fit on this machine, which has {cores}")
        if self.address is None and gpus:
            from cbs.compute import device

            count = device.count()
            if gpus > count:
                raise ConfigError(f"a trial of {gpus:g} GPUs does not fit on this machine, which has {count}")

    @property
    def cpus(self) -> int:
        """Number of cores of a trial."""
        return 1 if self.launch else self.workers_per_trial * self.cpus_per_trial

    def check_devices(self, asked: str, *, command: bool) -> None:
        """Refuse what does not combine, GPUs that a trial would hold but not use, and workers that it would not get.

        Args:
            asked: device of the sweep's trials.
            command: whether an external program trains, which starts its own workers.

        Raises:
            ConfigError: with what to give instead.
        """
        workers, gpus = self.workers_per_trial, self.gpus_per_trial
        given = {
            "--command": command,
            "--workers-per-trial": workers > 1,
            "--gpus-per-trial": bool(gpus),
            "--launch": bool(self.launch),
            "--address": self.address is not None,
            "--set shard": self.shard,
            "--set nodes_per_trial": self.nodes_per_trial > 1,
            "--set device=cpu": asked == "cpu",
        }
        refuse({name for name, there in given.items() if there})
        if command:
            return
        if gpus and gpus > workers:
            raise ConfigError(
                f"--gpus-per-trial {gpus:g} would hold {gpus:g} GPUs for a trial that uses {workers}, one per worker: "
                f"add --workers-per-trial {gpus:g}"
            )
        if gpus and workers > 1 and gpus != workers:
            raise ConfigError(f"{workers} workers per trial take {workers} GPUs or none, not --gpus-per-trial {gpus:g}")

    def gpus_of_trial(self, device: str) -> float:
        """Return the GPUs of a trial on the connected Ray; by default one per worker if any node has GPUs."""
        if self.gpus_per_trial is not None or self.launch:
            return self.gpus_per_trial or 0.0
        there = device != "cpu" and any(node.get("GPU", 0) >= 1 for node in _nodes())
        return float(self.workers_per_trial) if there else 0.0

    @property
    def local_workers(self) -> int:
        """Number of trials that run at the same time on this machine."""
        room = max(1, (os.cpu_count() or 1) // self.cpus)
        if self.launch:
            return self.workers or room
        return min(self.workers or room, room)

    def parallel(self, gpus: int) -> int:
        """Return the number of parallel trials that a time estimate assumes; 0 if only the cluster knows it.

        Args:
            gpus: number of GPUs of this machine that trials use; 0 for none.
        """
        if self.address is not None:
            return self.workers or 0
        share = float(self.workers_per_trial) if self.gpus_per_trial is None else self.gpus_per_trial
        if not gpus or not share or self.launch:
            return self.local_workers
        return max(1, min(self.local_workers, int(gpus / share)))


def check_placement(resources: Resources, gpus: float) -> int:
    """Return how many trials the nodes hold at once.

    Raises:
        ConfigError: if none can; the message says what is asked for and what the nodes have.
    """
    nodes = _nodes()
    held = [_holds(node, resources.cpus, gpus) for node in nodes]
    if sum(each > 0 for each in held) < resources.nodes_per_trial:
        there = ", ".join(f"{node.get('CPU', 0):g} cores and {node.get('GPU', 0):g} GPUs" for node in nodes) or "none"
        few = "no node" if resources.nodes_per_trial == 1 else f"no {resources.nodes_per_trial} nodes"
        raise ConfigError(f"{few} can hold a trial of {resources.cpus} cores and {gpus:g} GPUs: the nodes have {there}")
    room = max(1, sum(held) // resources.nodes_per_trial)
    return min(resources.workers or room, room)


def _nodes() -> list[dict[str, float]]:
    """Return the cores and GPUs of every node that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _holds(node: dict[str, float], cpus: int, gpus: float) -> int:
    """Return how many trials fit on a node."""
    held = int(node.get("CPU", 0) // cpus)
    return min(held, int(node.get("GPU", 0) / gpus + 1e-6)) if gpus else held  # 0.3 / 0.1 rounds to less than 3
