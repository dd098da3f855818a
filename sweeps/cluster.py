"""A connection to Ray: a private one on this machine, or a running cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError, reason

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # Ray would run workers at low priority; a sweep is what the person is waiting for.
    "RAY_worker_niceness": "0",
    # The results folder is the state of a sweep; Tune's own snapshots would only cost time.
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
}
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "536870912"}
"""Keeps glibc from returning activations to the kernel after every step: 20 % of a step at batch size 512 on a CPU."""

_FOLDER = "cbs-ray-"

_TOKEN_HINT = "for a cluster with token authentication set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH if need be"

CONNECT_SECONDS = 5.0
"""How long to wait for a cluster's port to answer; Ray itself would go on trying for minutes."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Where a sweep runs.

    Attributes:
        workers: most trials at a time; ``None`` for as many as the machine or cluster holds.
        cpus_per_trial: cores, and torch threads, of a trial.
        gpus_per_trial: share of a GPU a trial takes; ``None`` for a whole one where there is one.
        address: address of a running Ray cluster (``"auto"`` to find it); ``None`` starts a private one.
    """

    workers: int | None = None
    cpus_per_trial: int = 1
    gpus_per_trial: float | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"the number of workers must be at least 1, got {self.workers}")
        if self.cpus_per_trial < 1:
            raise ConfigError(f"cpus per trial must be at least 1, got {self.cpus_per_trial}")
        if self.gpus_per_trial is not None and self.gpus_per_trial < 0:
            raise ConfigError(f"gpus per trial must not be negative, got {self.gpus_per_trial}")

    @property
    def local_workers(self) -> int:
        """Trials at a time on this machine."""
        room = max(1, (os.cpu_count() or 1) // self.cpus_per_trial)
        return min(self.workers or room, room)

    def parallel(self, gpus: int) -> int:
        """Trials at a time that a time estimate counts on; 0 where only the cluster knows.

        Args:
            gpus: GPUs of this machine that trials use, 0 for none.
        """
        if self.address is not None:
            return self.workers or 0
        share = 1.0 if self.gpus_per_trial is None else self.gpus_per_trial
        if not gpus or not share:
            return self.local_workers
        return max(1, min(self.local_workers, int(gpus / share)))


@contextlib.contextmanager
def connected(resources: Resources) -> Iterator[str]:
    """Connect to Ray for the length of the block; yields the namespace of this sweep.

    A private Ray is stopped and its files removed at the end. A connection that exists already is used and left alone.

    Raises:
        ConfigError: if Ray cannot be reached or started.
    """
    for key, value in (_QUIET | _ALLOCATOR).items():
        os.environ.setdefault(key, value)
    import ray

    remove_stale_folders()
    namespace = f"cbs-{uuid.uuid4().hex}"
    for name in ("ray", "ray.tune", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if ray.is_initialized():
        yield namespace
        return
    folder = None
    options: dict[str, Any] = {"namespace": namespace, "logging_level": logging.CRITICAL, "log_to_driver": False}
    if resources.address is not None:
        options["address"] = resources.address
    else:
        folder = temporary_folder()
        options |= {
            "num_cpus": resources.local_workers * resources.cpus_per_trial,
            "include_dashboard": False,
            "object_store_memory": 100 * 1024**2,
            "_temp_dir": folder,
        }
    try:
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = resources.address or "this machine"
            hint = "" if resources.address is None else f"; {_TOKEN_HINT}"
            raise ConfigError(f"cannot reach Ray at {where}: {reason(error)}{hint}") from None
        yield namespace
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def check_listening(address: str) -> None:
    """Check that something listens at ``host:port`` (``auto`` is left to Ray).

    Raises:
        ConfigError: if the address has no port, or nothing answers there.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--address takes host:port or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot reach Ray at {address}: {error}; is the cluster up ('ray status')?") from None


def temporary_folder() -> str:
    """A new temporary folder that says whose it is; removed by a later sweep if this process is killed."""
    return tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-")


def remove_stale_folders() -> None:
    """Remove the temporary folders of sweeps whose process was killed."""
    if sys.platform != "linux":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        pid = folder.name.removeprefix(_FOLDER).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
