"""Run one trial with an external program: start, follow and end it; the record is like that of a trial trained here."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import platform
import shlex
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.read.importers.trials import no_steps
from cbs.errors import ConfigError, DataError, ResultsError, reason
from cbs.files import atomic_file, move
from cbs.trial.config import TrialConfig
from cbs.trial.ending import Ending, Monitor, ended, ended_at_start, exhausted
from cbs.trial.record import TrialResult, TrialStatus, WorkloadInfo, leeway
from sweeps.external.curve import LoggedCurve, stated
from sweeps.external.process import GRACE, MOST_OUTPUT, OUTPUT, Process
from sweeps.external.trainer import ALONE, ExternalTrainer, environment_of

# Seconds between two reads of the log: minimum, maximum, and fraction of the seconds since the start. A log that takes
# long to read is read less often, for at most that fraction of the time.
FIRST_LOOK, LAST_LOOK, SHARE = 0.05, 5.0, 0.02


def run_command(
    trial: TrialConfig,
    folder: Path,
    *,
    path: str,
    launch: str = "",
    nodes: int = 1,
    meeting: str = "",
    threads: int = 1,
    monitor: Monitor | None = None,
    alive: Callable[[int], object] = lambda step: None,
) -> TrialResult:
    """Start the program of a trial, follow its log, and end it when it reaches the target, is pruned or diverges.

    Args:
        trial: has a workload made by :meth:`sweeps.external.trainer.ExternalTrainer.choice`.
        folder: folder for the program and its output; it is kept. What an earlier attempt left there is moved aside, or
            stays if the program can resume.
        path: working folder of the program.
        launch: line that starts the program as a job, see :class:`Job`; empty to start it here.
        nodes: number of nodes on which it is started; this is the first, and ``meeting`` is ``name@host`` of all.
        threads: number of cores of the trial.
        monitor: called with the first and the latest evaluation.
        alive: called with the latest step whenever the program has written anything.

    Returns:
        The record; if the program failed or logged nothing that can be read, the status is FAILED and the message
        contains the last lines of its output.

    Raises:
        ResultsError: if the folder cannot be created.
        ConfigError: if the command contains a placeholder that has no value.
    """
    trainer = ExternalTrainer.of(trial.workload)
    resumed = _prepare(folder, keep=bool(trainer.resume))
    port = _free_port()
    node = call_nodes(trainer, folder, meeting, nodes, port, resumed) if nodes > 1 else ALONE
    command = trainer.argv(trial, folder, resumed=resumed, port=port, node=node)
    environment = environment_of(folder, threads)
    curve = LoggedCurve(trainer, trial, folder, resumed=resumed)
    started, reading, ending = time.perf_counter(), 0.0, None
    job = Job(trainer.filled(launch, trial, folder), command, environment, folder, path) if launch else None
    most = math.inf if trainer.prints else MOST_OUTPUT
    process = Process(job.command if job else command, folder, path, environment, most=most)
    try:
        while ending is None:
            passed = time.perf_counter() - started
            over = process.wait(max(FIRST_LOOK, min(LAST_LOOK, SHARE * passed), reading / SHARE))
            began = time.perf_counter()
            more = curve.update(whole=over and process.code == 0)
            reading = time.perf_counter() - began
            if process.talked() or curve.changed or (job and job.waits):  # a job in a queue is alive
                alive(curve.evaluations[-1].step if curve.evaluations else 0)
            if curve.hopeless:
                ending = TrialStatus.FAILED, curve.problem
            elif more or over:
                ending = _stated(folder)[1] or _ending(curve, trial, None if over else monitor)
            if over and ending is None:
                ending = _by_itself(process, curve, trial)
        words = process.last_words() if ending[0] is TrialStatus.FAILED else ""
    finally:
        process.end()
    rows = curve.evaluations
    crossing = trial.target.crossing([row.step for row in rows], [row.value for row in rows])
    return TrialResult(
        config=trial,
        status=ending[0],
        steps_to_target=crossing if ending[0] is TrialStatus.REACHED else None,
        evaluations=rows,
        steps=no_steps(),
        workload=WorkloadInfo(**trainer.units, parameters=None, data_hash=None),
        message=f"{ending[1]}{words}",
        stated=_stated(folder)[0],
        timing={"seconds": time.perf_counter() - started, "host": platform.node()},
    )


def _free_port() -> int:
    """Return a free port of this machine, because two programs with the same default port would collide."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _prepare(folder: Path, *, keep: bool) -> bool:
    """Create the folder; return whether it holds what an earlier attempt left and the program can resume from."""
    try:
        left = folder.exists() and any(folder.iterdir())
        if left and not keep:
            names = (folder.with_name(f"{folder.name}~{count}") for count in itertools.count(1))
            move(folder, next(aside for aside in names if not aside.exists()))
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot write to {folder}: {reason(error)}") from None
    return left and keep


def _ending(curve: LoggedCurve, trial: TrialConfig, monitor: Monitor | None) -> Ending | None:
    """Return how the trial ended on the curve so far, or ``None``; evaluations after the end are dropped."""
    rows = curve.evaluations
    ending, last = ended_at_start(trial, rows[0]) if rows else None, 0
    while ending is None and last + 1 < len(rows):
        last += 1
        ending = ended(trial, [rows[0], rows[last]], monitor if last == len(rows) - 1 else None)
        if ending is None and rows[last].step >= trial.max_steps:
            ending = exhausted(trial, rows[last])
    if ending is not None:
        del rows[last + 1 :]
    return ending


def _stated(folder: Path) -> tuple[dict[str, Any], Ending | None]:
    """Return the settings that the program reported, or how the trial ends because they cannot be read."""
    try:
        return stated(folder), None
    except DataError as error:
        return {}, (TrialStatus.FAILED, str(error))


def _by_itself(process: Process, curve: LoggedCurve, trial: TrialConfig) -> Ending:
    if process.code != 0 or curve.problem:
        return TrialStatus.FAILED, process.how() if process.code != 0 else curve.problem
    if not curve.evaluations or curve.evaluations[-1].step < 1:
        return TrialStatus.FAILED, f"the command ended and {curve.nothing}"
    last = curve.evaluations[-1]
    if not trial.stops_at_target:
        budget = trial.max_steps * trial.batch_size
        if last.step * trial.batch_size < budget - leeway(budget, trial.batch_size):
            return TrialStatus.FAILED, (
                f"its last evaluation is at step {last.step} of {trial.max_steps}: the program must make as many "
                "updates as {steps} says, and evaluate after the last"
            )
        return exhausted(trial, last)
    return (
        TrialStatus.BUDGET_EXHAUSTED,
        f"{trial.target} not reached: the command ended by itself at step {last.step}; last value {last.value:.4g}",
    )


LOOK = 1.0  # Seconds between two looks of a job at whether it is wanted

_SCRIPT = """#!/bin/bash
# A trial of cbs sweep --launch; ends when {wanted} is gone.
cd {path} || exit
exec >>{output} 2>&1
[ -e {wanted} ] || exit 143
hostname >{wanted}
{exports}
set -m
{command} &
program=$!
exec 2>/dev/null  # what the shell itself says of jobs
trap 'kill -- -$program' TERM
(while [ -e {wanted} ]; do sleep {look:g}; done; kill -- -$program; sleep {grace:g}; kill -9 -- -$program) &
watch=$!
wait $program
code=$?
kill -- -$watch
exit $code
"""
_LAUNCHER = """trap 'rm -f "$0"' EXIT; trap 'exit 143' TERM; "$@" & wait $!"""


class Job:
    """A trial as a job of its own, ``cbs sweep --launch 'sbatch --wait ...'``, where Ray may not span nodes.

    The launcher gets a script as its last argument, starts it anywhere, waits for its end and exits with its code.
    Between the two stands a file in the folder of the trial, which both sides see: the job ends when it is gone. It is
    empty while the job waits, and removed when the launcher ends, is told to end or, by :mod:`sweeps.external.guard`,
    when the sweep is gone; so a job that begins after its sweep has ended, ends at once.

    The ``launcher`` stands before the script; the node of the job sees the ``folder`` of the trial under the same path.
    ``command`` becomes what to start here in place of the program.
    """

    def __init__(
        self, launcher: Sequence[str], command: Sequence[str], environment: Mapping[str, str], folder: Path, path: str
    ) -> None:
        for left in folder.glob("job-*"):  # of an attempt whose machine is gone, and whose job may still run
            left.unlink()
        self._wanted, script = folder / f"job-{uuid.uuid4().hex}", folder / "job.sh"
        paths = {"wanted": self._wanted, "path": path, "output": folder / OUTPUT}
        lines = {
            "exports": "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
            "command": shlex.join(command),
            **{name: shlex.quote(str(place)) for name, place in paths.items()},
        }
        script.write_text(_SCRIPT.format(**lines, grace=GRACE, look=LOOK))
        script.chmod(0o755)
        self._wanted.touch()
        self.command = ["bash", "-c", _LAUNCHER, str(self._wanted), *launcher, str(script)]

    @property
    def waits(self) -> bool:
        """Whether the job has not begun."""
        with contextlib.suppress(FileNotFoundError):
            return self._wanted.stat().st_size == 0
        return False


NODES = "nodes.json"  # File in the folder of a trial, which all of its nodes see: what the first tells the others
# Seconds between two looks for the file of the first node, and until it is given up
NODES_LOOK, NODES_PATIENCE = 0.2, 300.0


def call_nodes(
    trainer: ExternalTrainer, folder: Path, meeting: str, nodes: int, port: int, resumed: bool
) -> dict[str, str]:
    """Tell the other nodes what the command needs; return the values of its placeholders on the first node.

    A program may be started on several nodes for one trial, as ``torchrun`` has to be: the first runs and follows it as
    on one node, the others run it until it ends or they are killed. The command has to ask which node it is on, and
    where the first is.
    """
    for name in ("node_rank", "head"):
        if f"{{{name}}}" not in trainer.command:
            raise ConfigError(f"--command has no {{{name}}}: each of the {nodes} nodes of a trial would train alone")
    with atomic_file(folder / NODES) as draft:
        draft.write_text(json.dumps({"meeting": meeting, "port": port, "resumed": resumed}))
    return _values(meeting, nodes, 0)


def join_nodes(
    trial: TrialConfig, folder: Path, path: str, meeting: str, rank: int, nodes: int, threads: int = 1
) -> dict[str, Any]:
    """Run the program of a trial on a node other than the first; returns its ``status``, with a ``message`` if it has
    failed. What it prints is in ``output.log`` of the folder ``node-RANK`` in that of the trial."""
    trainer, told, waited = ExternalTrainer.of(trial.workload), dict[str, Any](), 0.0
    while told.get("meeting") != meeting:
        if waited > NODES_PATIENCE:
            return {"status": str(TrialStatus.FAILED), "message": f"node {rank} sees no {folder / NODES}"}
        time.sleep(NODES_LOOK)
        waited += NODES_LOOK
        told = json.loads((folder / NODES).read_text()) if (folder / NODES).exists() else {}
    node = _values(meeting, nodes, rank)
    command = trainer.argv(trial, folder, resumed=told["resumed"], port=told["port"], node=node)
    own = folder / f"node-{rank}"
    own.mkdir(exist_ok=True)
    process = Process(command, own, path, environment_of(folder, threads))
    try:
        while not process.wait(1.0):
            process.talked()
        if process.code == 0:
            return {"status": str(TrialStatus.BUDGET_EXHAUSTED)}
        message = f"node {rank}: {process.how()}{process.last_words()}"
        return {"status": str(TrialStatus.FAILED), "message": message}
    finally:
        process.end()


def _values(meeting: str, nodes: int, rank: int) -> dict[str, str]:
    return {"nodes": str(nodes), "node_rank": str(rank), "head": meeting.partition("@")[2]}
