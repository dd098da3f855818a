"""Runs trials and stays alive whatever they do; an actor of Ray holds one. Imports no torch."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Any

from cbs.errors import CbsError
from cbs.record import TrialStatus
from sweeps.running.child import Child, Died
from sweeps.running.memory import killed_for_memory


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all trials of a sweep share.

    Attributes:
        store: folder of the sweep.
        path: folder in which a workload of the user's own is found.
        threads: of torch.
        prune_factor: as in the sweep.
        silence: seconds without a step or an evaluation after which a trial is stopped.
    """

    store: str
    path: str
    threads: int
    prune_factor: float | None
    silence: float


class Worker:
    """Runs trials one after the other in a process of its own, which is used again.

    Args:
        setup: shared by all trials.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._child: Child | None = None
        self._where: dict[str, Any] = {}

    def run(self, trial: dict[str, Any], best_steps: float | None) -> dict[str, Any]:
        """Run a trial; its result is in the store afterwards.

        Returns:
            What :func:`sweeps.running.trials.run` returns; or ``fatal``, what every trial would run into; or ``died``,
            what became of its process, with ``lines``, the last it wrote, ``hung`` and ``memory``, whether it was
            silent for too long and whether the system killed it to get memory back.
        """
        self._where = {"host": platform.node(), "pid": os.getpid()}
        kills = killed_for_memory()
        if self._child is None:
            self._child = Child()
        try:
            answer = self._child.call(
                "sweeps.running.trials:run",
                self._setup,
                trial,
                best_steps,
                heard=self._where.update,
                silence=self._setup.silence,
            )
        except Died as death:
            self.close()
            memory = killed_for_memory() > kills
            return {"died": str(death), "hung": death.hung, "memory": memory, "lines": death.lines}
        except CbsError as error:
            return {"fatal": str(error)}
        finally:
            self._where = {}
        if answer["status"] == TrialStatus.OUT_OF_MEMORY:
            self.close()  # nobody knows what is left in memory
        return answer

    def where(self) -> dict[str, Any]:
        """Step, value and time of the last sign of life of the trial that runs, and where it does."""
        return dict(self._where)

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
            self._child = None
