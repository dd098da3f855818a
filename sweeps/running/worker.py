"""Runs trials and stays alive whatever they do; an actor of Ray holds one. Imports no torch."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbs.errors import CbsError
from cbs.trial.record import TrialStatus
from sweeps.folder.pass_sizes import PassSizes
from sweeps.running.child import Child, Died
from sweeps.running.memory import killed_for_memory

LAST_WORDS = 3.0
"""Seconds the other ranks of a trial have to say why they fail once one has, which need not be the cause."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all trials of a sweep share.

    Attributes:
        store: folder of the sweep.
        path: folder in which a workload of the user's own is found.
        threads: of torch.
        prune_factor: as in the sweep.
        silence: seconds without a step or an evaluation after which a trial is stopped.
        workers: processes that train a trial together.
        shard: whether each of them holds a part of the model only.
        keep: examples after which trials leave a checkpoint for others to start from.
    """

    store: str
    path: str
    threads: int
    prune_factor: float | None
    silence: float
    workers: int = 1
    shard: bool = False
    keep: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of a process among those that train a trial.

    Attributes:
        rank: from 0 on; the first one tells and stores.
        meeting: URL where they find each other.
        most: examples of a forward and backward pass that memory holds, where that is known.
    """

    rank: int
    meeting: str
    most: int | None


class Worker:
    """Runs trials one after the other in processes of its own, which are used again.

    Args:
        setup: shared by all trials.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._children: list[Child] = []
        self._where: dict[str, Any] = {}
        self._fitting = PassSizes(setup.store, setup.workers, setup.shard)

    def run(self, trial: dict[str, Any], best_steps: float | None) -> dict[str, Any]:
        """Run a trial, with ever smaller forward and backward passes until memory holds them.

        Returns:
            What :func:`sweeps.running.trials.run` returns, its result in the store if its status is final; or
            ``fatal``, what every trial would run into; or ``died``, what became of its process, with ``lines``, the
            last it wrote, ``hung`` and ``memory``, whether it was silent for too long and whether the system killed it
            to get memory back.
        """
        try:
            while True:
                most = self._fitting.most(trial)
                answer = self._once(trial, best_steps, most)
                examples = answer.get("too_large", 0)
                if examples <= 1:
                    return answer
                self._fitting.too_large(trial, examples)
        except CbsError as error:
            return {"fatal": str(error)}
        finally:
            self._where = {}

    def _once(self, trial: dict[str, Any], best_steps: float | None, most: int | None) -> dict[str, Any]:
        """Run a trial with passes of ``most`` examples; ``too_large`` in what comes back is how many did not fit."""
        self._where = {"host": platform.node(), "pid": os.getpid()}
        kills = killed_for_memory()
        try:
            answer = self._together(trial, best_steps, most)
        except Died as death:
            self.close()
            memory = killed_for_memory() > kills
            ending = {"died": str(death), "hung": death.hung, "memory": memory, "lines": death.lines}
            if memory and self._where.get("step") is not None:  # it got as far as training
                ending["too_large"] = most or -(-trial["batch_size"] // self._setup.workers)
            return ending
        except CbsError:
            self.close()
            raise
        unclear = answer["status"] == TrialStatus.OUT_OF_MEMORY or (self._setup.workers > 1 and "message" in answer)
        if names := answer.pop("changed", None):
            answer.setdefault("notes", []).append(
                f"trials change {', '.join(names)}, so that each has a process of its own, which takes seconds: "
                "do it once, where the workload is imported"
            )
        if names or unclear:
            self.close()  # nobody knows what is left in memory, or where the others are
        return answer

    def _together(self, trial: dict[str, Any], best_steps: float | None, most: int | None) -> dict[str, Any]:
        """What the first rank answers, or the one that failed."""
        while len(self._children) < self._setup.workers:
            self._children.append(Child())
        folder = tempfile.mkdtemp(prefix="cbs-ranks-") if self._setup.workers > 1 else ""
        meeting = Path(folder, "meeting").absolute().as_uri()
        pool = ThreadPoolExecutor(self._setup.workers)
        calls = [
            pool.submit(
                child.call,
                "sweeps.running.trials:run",
                self._setup,
                Place(rank=rank, meeting=meeting, most=most),
                trial,
                best_steps,
                heard=(self._where.update if rank == 0 else lambda said: None),
                silence=self._setup.silence,
            )
            for rank, child in enumerate(self._children)
        ]
        try:
            waiting: set[Future[dict[str, Any]]] = set(calls)
            while waiting and not any(_failed(call) for call in calls):
                _, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            if waiting:
                wait(waiting, LAST_WORDS)
            failed = [call for call in calls if _failed(call)]
            cause = min(failed or calls[:1], key=_rank_of_cause)
            for child in self._children if failed and len(calls) > 1 else ():
                child.kill()
            return cause.result()
        finally:
            pool.shutdown()
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def where(self) -> dict[str, Any]:
        """Step, value and time of the last sign of life of the trial that runs, and where it does."""
        return dict(self._where)

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.close()
        self._children = []


def _failed(call: Future[dict[str, Any]]) -> bool:
    """Whether a rank has ended in a way that ends all."""
    if not call.done():
        return False
    return call.exception() is not None or not TrialStatus(call.result()["status"]).final


def _rank_of_cause(call: Future[dict[str, Any]]) -> int:
    """What is told first where several ranks failed: a death, a full memory, misuse; a rank that lost the others fails
    in a sum, which says nothing."""
    error = call.exception()
    if isinstance(error, Died):
        return 0
    if error is not None:
        return 2
    return 1 if call.result()["status"] == TrialStatus.OUT_OF_MEMORY else 3
