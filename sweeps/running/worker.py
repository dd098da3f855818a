"""Run trials in child processes and survive whatever they do; a Ray actor holds one worker. Does not import torch."""

import ctypes
import json
import os
import platform
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbs.compute.pass_sizes import halved
from cbs.errors import CbsError
from cbs.files import atomic_file
from cbs.trial.config import fingerprint
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.running.child import Child, Died

# Seconds that the other ranks of a trial get to report their errors after one has failed, which need not be the
# cause.
LAST_WORDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all trials of a sweep share.

    Attributes:
        store: folder of the sweep.
        path: folder in which the user's own workload module is found.
        threads: number of torch threads.
        prune_factor: pruning factor of the sweep.
        silence: seconds without a step or an evaluation after which a trial is stopped.
        workers: number of processes that train one trial together.
        shard: whether each of these processes holds only a part of the model.
        nodes: number of nodes on which a trial's command is started at once.
        launch: line that starts a trial's command as a job, see :class:`sweeps.external.run.Job`.
        keep: numbers of examples after which trials save a checkpoint for other trials to start from.
    """

    store: str
    path: str
    threads: int
    prune_factor: float | None
    silence: float
    workers: int = 1
    shard: bool = False
    nodes: int = 1
    launch: str = ""
    keep: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of a process among those that train one trial.

    Attributes:
        rank: rank of the process; rank 0 reports and stores.
        meeting: URL through which the processes find each other; of a command on several nodes, a name
            of their own and the first node, ``name@host``.
        most: largest number of examples of a forward and backward pass that fits into memory, if known.
    """

    rank: int
    meeting: str
    most: int | None


class Worker:
    """Runs trials one after the other in child processes, which are reused.

    Args:
        setup: what all trials share.
        head: address of this node for the others.
        seats: each makes a process on another node, like :class:`~sweeps.running.child.Child`.
    """

    def __init__(self, setup: Setup, head: str = "localhost", seats: Sequence[Callable[[], Any]] = ()) -> None:
        self._setup, self._head = setup, head
        self._kinds: list[Callable[[], Any]] = [Child] * setup.workers + [*seats]
        self._children: list[Child] = []
        self._where: dict[str, Any] = {}
        self._fitting = PassSizes(setup.store, setup.workers, setup.shard)

    def run(self, trial: dict[str, Any], best_steps: float | None) -> dict[str, Any]:
        """Run a trial, with ever smaller forward and backward passes until they fit into memory.

        Returns:
            What :func:`sweeps.running.trials.run` returns, with the result in the store if the status is final; or
            ``fatal``, a problem that every trial would have; or ``died``, how its process ended, with ``lines``, the
            last lines it wrote, ``hung``, whether it was silent for too long, and ``memory``, whether the system killed
            it because memory was full.
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
        """Run a trial with passes of ``most`` examples; the answer has ``too_large``, the examples that did not fit."""
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
        unclear = answer["status"] == TrialStatus.OUT_OF_MEMORY or (len(self._kinds) > 1 and "message" in answer)
        if names := answer.pop("changed", None):
            answer.setdefault("notes", []).append(
                f"trials change {', '.join(names)}, so each of them runs in a new process, which takes seconds: change "
                "it once, where the workload is imported"
            )
        if names or unclear:
            self.close()  # what is left in memory, and where the other ranks are, is unknown
        return answer

    def _together(self, trial: dict[str, Any], best_steps: float | None, most: int | None) -> dict[str, Any]:
        """Return the answer of rank 0 or, if ranks failed, of the one that is the cause."""
        while len(self._children) < len(self._kinds):
            self._children.append(self._kinds[len(self._children)]())
        folder = tempfile.mkdtemp(prefix="cbs-ranks-") if self._setup.workers > 1 else ""
        meeting = Path(folder, "meeting").absolute().as_uri()
        if self._setup.nodes > 1:
            meeting = f"{uuid.uuid4().hex}@{self._head}"
        pool = ThreadPoolExecutor(len(self._children))
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
            while waiting and not any(_failed(call) for call in calls) and not self._over(calls[0]):
                _, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            if waiting and not self._over(calls[0]):
                wait(waiting, LAST_WORDS)
            failed = [call for call in calls if _failed(call)]
            cause = calls[0] if self._over(calls[0]) else min(failed or calls[:1], key=_rank_of_cause)
            for child in self._children if failed and len(calls) > 1 else self._children[self._setup.workers :]:
                child.kill()
            return cause.result()
        finally:
            pool.shutdown()
            while len(self._children) > self._setup.workers:
                self._children.pop().close()
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _over(self, first: Future[dict[str, Any]]) -> bool:
        """Return whether a trial on several nodes is over, which the first of them says for all."""
        return self._setup.nodes > 1 and first.done()

    def where(self) -> dict[str, Any]:
        """Return step, value and time of the latest heartbeat of the running trial, and the machine it runs on."""
        return dict(self._where)

    def close(self) -> None:
        """End the child processes."""
        for child in self._children:
            child.close()
        self._children = []


def _failed(call: Future[dict[str, Any]]) -> bool:
    """Return whether a rank has ended in a way that ends the whole trial."""
    if not call.done():
        return False
    return call.exception() is not None or not TrialStatus(call.result()["status"]).final


def _rank_of_cause(call: Future[dict[str, Any]]) -> int:
    """Return the priority of a failed rank's error: a death, full memory, and misuse come first; a rank that merely
    lost the others fails in a collective operation, which explains nothing."""
    error = call.exception()
    if isinstance(error, Died):
        return 0
    if error is not None:
        return 2
    return 1 if call.result()["status"] == TrialStatus.OUT_OF_MEMORY else 3


TOO_LARGE = "too-large.json"
"""File: a fingerprint of what trains -> batch size -> fewest examples of a pass that did not fit. It may be deleted."""
# Fields of a trial on which its memory depends, in addition to its batch size
_MATTERS = ("workload", "optimizer", "averaging", "probe", "diagnostics", "precision", "compile", "device")


class PassSizes:
    """Sizes of the forward and backward passes of a sweep's trials.

    What was too large at one batch size is too large at any larger one. Sizes come from halving a trial's own batch, so
    the final size depends on the available memory only, not on which trials ran before.

    Args:
        folder: folder of the sweep.
        workers: number of workers of a trial; each holds its share of a step.
        shard: whether each worker holds only a part of the model.
    """

    def __init__(self, folder: str, workers: int, shard: bool = False) -> None:
        self._path, self._workers, self._shard = Store(folder).root / TOO_LARGE, workers, shard

    def most(self, trial: dict[str, Any]) -> int | None:
        """Return the largest number of examples per pass of a trial (:meth:`TrialConfig.to_dict`); ``None`` if
        unlimited."""
        known = self._known().get(self._key(trial), {})
        too_large = min((size for batch, size in known.items() if int(batch) <= trial["batch_size"]), default=None)
        return halved(-(-trial["batch_size"] // self._workers), trial.get("micro_batch_size"), too_large)

    def too_large(self, trial: dict[str, Any], examples: int) -> None:
        """Record that a pass of this many examples did not fit.

        Raises:
            ResultsError: if the file cannot be written.
        """
        known = self._known()
        sizes = known.setdefault(self._key(trial), {})
        batch = str(trial["batch_size"])
        sizes[batch] = min(examples, sizes.get(batch, examples))
        with atomic_file(self._path) as draft:
            draft.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")

    def _key(self, trial: dict[str, Any]) -> str:
        matters = {name: trial.get(name) for name in _MATTERS}
        return fingerprint({"workers": self._workers, "shard": self._shard, **matters})

    def _known(self) -> dict[str, dict[str, int]]:
        """Return the content of the file as far as it can be read; lost entries will be found again."""
        try:
            content = json.loads(self._path.read_text())
            return {
                str(key): {str(int(batch)): int(size) for batch, size in sizes.items()}
                for key, sizes in content.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return {}


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Numbers of these parameters in ``malloc.h``
_MOST = 2**31 - 1  # of an int, which is what mallopt takes
# Files in which Linux counts the processes that it killed because memory was full
_KILLS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
_LARGEST_PIECE = 2**25  # Largest value that glibc accepts; larger allocations are mapped from the system every time


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, up to the most it ever needed.

    The GNU C library returns free memory at the end of its heap to the system, which clears every page that is
    requested again. On a CPU this concerns most of the activations at every training step: 0 to 20 % of the time of a
    step.

    Returns:
        Whether the settings were made; other C libraries have none.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(
        library.mallopt(ctypes.c_int(parameter), ctypes.c_int(value)) == 1
        for parameter, value in ((_MMAP_THRESHOLD, _LARGEST_PIECE), (_TRIM_THRESHOLD, _MOST))
    )


def killed_for_memory() -> int:
    """Return how many processes the system has killed so far because memory was full; 0 if it does not count them."""
    kills = 0
    for path in _KILLS:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills
