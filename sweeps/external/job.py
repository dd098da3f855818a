"""A trial as a job of its own, ``cbs sweep --launch 'sbatch --wait ...'``, where Ray may not span nodes.

The launcher gets a script as its last argument, starts it anywhere, waits for its end and exits with its code. Between
the two stands a file in the folder of the trial, which both sides see: the job ends when it is gone. It is empty while
the job waits, and removed when the launcher ends, is told to end or, by :mod:`sweeps.external.guard`, when the sweep is
gone; so a job that begins after its sweep has ended, ends at once.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeps.external.process import GRACE, OUTPUT

LOOK = 1.0
"""Seconds between two looks of a job at whether it is wanted."""

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
    """The script of a trial's job, written into its folder, with the file that says whether the job is wanted.

    Args:
        launcher: the launcher and its arguments, before the script.
        command: the program and its arguments.
        environment: environment variables of the program beside those that the launcher hands on.
        folder: folder of the trial, which the node of the job sees under the same path.
        path: working folder of the program.

    Attributes:
        command: what to start here in place of the program.
    """

    def __init__(
        self, launcher: Sequence[str], command: Sequence[str], environment: Mapping[str, str], folder: Path, path: str
    ) -> None:
        for left in folder.glob("job-*"):  # of an attempt whose machine is gone, and whose job may still run
            left.unlink()
        self._wanted, script = folder / f"job-{uuid.uuid4().hex}", folder / "job.sh"
        places = {"wanted": self._wanted, "path": path, "output": folder / OUTPUT}
        lines = {
            "exports": "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
            "command": shlex.join(command),
            **{name: shlex.quote(str(place)) for name, place in places.items()},
        }
        script.write_text(_SCRIPT.format(**lines, grace=GRACE, look=LOOK))
        script.chmod(0o755)
        self._wanted.touch()
        self.command = ["bash", "-c", _LAUNCHER, str(self._wanted), *launcher, str(script)]

    @property
    def waits(self) -> bool:
        """Whether the job has not begun."""
        try:
            return self._wanted.stat().st_size == 0
        except FileNotFoundError:
            return False
