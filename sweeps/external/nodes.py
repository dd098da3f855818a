"""A program that is started on several nodes for one trial, as ``torchrun`` has to be: the first runs and follows it as
on one node, the others run it until it ends or they are killed.

They meet in the folder of the trial, which all nodes see: the first prepares it and then writes what the others need.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError
from cbs.files import atomic_file
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialStatus
from sweeps.external.process import Process
from sweeps.external.trainer import ExternalTrainer, environment_of

FILE = "nodes.json"
LOOK, PATIENCE = 0.2, 300.0
"""Seconds between two looks for the file of the first node, and until it is given up."""


def call_nodes(
    trainer: ExternalTrainer, folder: Path, meeting: str, nodes: int, port: int, resumed: bool
) -> dict[str, str]:
    """Tell the other nodes what the command needs; return the values of its placeholders on the first node.

    Raises:
        ConfigError: if the command does not ask which node it is on, and where the first is.
    """
    for name in ("node_rank", "head"):
        if f"{{{name}}}" not in trainer.command:
            raise ConfigError(f"--command has no {{{name}}}: each of the {nodes} nodes of a trial would train alone")
    with atomic_file(folder / FILE) as draft:
        draft.write_text(json.dumps({"meeting": meeting, "port": port, "resumed": resumed}))
    return _values(meeting, nodes, 0)


def join_nodes(
    trial: TrialConfig, folder: Path, path: str, meeting: str, rank: int, nodes: int, threads: int = 1
) -> dict[str, Any]:
    """Run the program of a trial on a node other than the first; returns its ``status``, with a ``message`` if it has
    failed. What it prints is in ``output.log`` of the folder ``node-RANK`` in that of the trial."""
    trainer, told, waited = ExternalTrainer.of(trial.workload), dict[str, Any](), 0.0
    while told.get("meeting") != meeting:
        if waited > PATIENCE:
            return {"status": str(TrialStatus.FAILED), "message": f"node {rank} sees no {folder / FILE}"}
        time.sleep(LOOK)
        waited += LOOK
        told = json.loads((folder / FILE).read_text()) if (folder / FILE).exists() else {}
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
