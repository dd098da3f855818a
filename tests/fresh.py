"""A fresh process that has torch, pandas and their like already: imported once, by the server that all of them are
forked from.

Where a test is about what a process imports, a process of its own is what it needs; everywhere else the seconds that
``import torch`` takes say nothing.
"""

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "pandas", "pyarrow.parquet", "scipy.optimize", "scipy.stats", "typer"),
        *("rich.console", "pytorch_optimizer"),
    ]
)
SECONDS = 600


@dataclass(frozen=True)
class Finished:
    """What is left of a process."""

    returncode: int | None
    stdout: str
    stderr: str


def python(source: str, folder: Path, *arguments: str) -> Finished:
    """Run ``source`` as ``python -c source arguments`` does, in ``folder``; ``returncode`` is ``None`` where it took
    more than ten minutes."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("stdout", "stderr")]
        child = begun(source, folder, *arguments, files=files)
        child.join(SECONDS)
        if child.exitcode is None:
            assert child.pid is not None
            os.killpg(child.pid, signal.SIGKILL)
        return Finished(child.exitcode, *(file.read_text() for file in files))


def begun(source: str, folder: Path, *arguments: str, files: Sequence[Path] = (Path(os.devnull),) * 2) -> BaseProcess:
    """The process, which has only begun; what it says goes to two files."""
    child = _SERVER.Process(target=_run, args=(source, str(folder), arguments, *map(str, files)))
    child.start()
    return child


def _run(source: str, folder: str, arguments: tuple[str, ...], *files: str) -> None:
    gc.freeze()  # a collection would write to every object of the server, and so copy all its pages
    os.setsid()
    for file, stream in zip(files, (sys.stdout, sys.stderr), strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream.fileno())
    os.chdir(folder)
    sys.argv, sys.modules["__main__"] = ["-c", *arguments], (main := ModuleType("__main__"))
    sys.path.insert(0, "")
    code = 0
    try:
        exec(compile(source, "<string>", "exec"), vars(main))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does at its top level
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
