"""The compiled ``native.c``: made once for a machine and cache folder, loaded once in a process.

The cache folder is ``$XDG_CACHE_HOME/cbs``, by default ``~/.cache/cbs``. The name of a library holds a hash of all that
it is made from (source, flags, processor) and one of its own bytes: what is stale is not found, and what is damaged is
removed and made anew, never loaded. Of several processes one compiles while the others wait. A build that fails leaves
a note with the reason, so that no process that can do without tries again until the compiler is another one.

What a process finds first it keeps, so the path does not change within one.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cbs.errors import MissingDependencyError

SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    # Leave to use vector instructions for roots and choices; neither changes a result.
    "-fno-math-errno",
    "-fno-trapping-math",
    # Every product is rounded, so that machines with and without fused multiply-add agree.
    "-ffp-contract=off",
)
COMPILE_SECONDS = 120.0
"""A compiler that takes longer counts as one that fails."""

_logger = logging.getLogger(__name__)


@cache
def automatic() -> ctypes.CDLL | None:
    """The library where there is one or it can be made, else ``None``, with a line in the log at level INFO."""
    try:
        return _library(again=False)
    except MissingDependencyError as problem:
        _logger.info("LAMB and MERIT are not compiled: %s", problem)
        return None


@cache
def required() -> ctypes.CDLL:
    """The library.

    Raises:
        MissingDependencyError: if it is not in the cache folder and cannot be made: no compiler, one that fails, or a
            folder that cannot be written.
    """
    return _library(again=True)


def version() -> str:
    """``"native"`` and the hash of the library where the automatic choice is compiled code, else ``"portable"``."""
    return "portable" if automatic() is None else f"native {_key()}"


def forget() -> None:
    """Find the library anew when it is needed next."""
    for found in (automatic, required, _key):
        found.cache_clear()


def _library(*, again: bool) -> ctypes.CDLL:
    """From the cache folder or compiled now; ``again``: even though it could not be compiled before."""
    folder, stem = _folder(), f"trust_ratio-{_key()}"
    kept = _cached(folder, stem)
    if kept is not None:
        return kept
    with _writing(folder), _alone(folder):
        # Another process may have made it while this one waited.
        return _cached(folder, stem) or _made(folder, stem, again=again)


def _cached(folder: Path, stem: str) -> ctypes.CDLL | None:
    try:
        places = sorted(folder.glob(f"{stem}-*.so"))
    except OSError:
        return None
    for place in places:
        try:
            # Loading a file that was cut off can end the process, so its bytes are checked first.
            if place.stem == f"{stem}-{_hash(place.read_bytes())}":
                return _load(place)
        except OSError as error:
            _logger.debug("cannot load %s: %s", place, error)
        with contextlib.suppress(OSError):
            place.unlink()
    return None


def _made(folder: Path, stem: str, *, again: bool) -> ctypes.CDLL:
    """Compile, keep and load; a failure is noted in the folder."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise MissingDependencyError(
            f"native=True needs a C compiler, and none of {', '.join(COMPILERS)} is in PATH; install one "
            "(apt-get install gcc, xcode-select --install) or leave native at its default"
        )
    note, who = folder / f"{stem}.failed", _identity(compiler)
    if not again and note.exists():
        known, _, problem = note.read_text(errors="replace").partition("\n")
        if known == who:
            raise MissingDependencyError(problem)
    try:
        library = _compiled(compiler, folder, stem)
    except MissingDependencyError as problem:
        note.write_text(f"{who}\n{problem}")
        raise
    note.unlink(missing_ok=True)
    return library


def _compiled(compiler: str, folder: Path, stem: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made, problem = Path(scratch) / "library.so", ""
        # Some compilers do not know the machine they run on.
        for tuned in (["-march=native"], []):
            command = [compiler, *FLAGS, *tuned, str(SOURCE), "-o", str(made), "-lm"]
            try:
                run = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=COMPILE_SECONDS,
                    # Ctrl-C is for this process; a compiler that it stops has not failed.
                    start_new_session=True,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                problem = str(error)
                break
            if run.returncode == 0:
                place = folder / f"{stem}-{_hash(made.read_bytes())}.so"
                # All at once: another process finds the whole file or none.
                os.replace(made, place)
                return _first_load(place)
            problem = next((line for line in run.stderr.splitlines() if "error" in line), "it said nothing")
    raise MissingDependencyError(
        f"native=True: {compiler} cannot compile {SOURCE}: {problem}; leave native at its default"
    )


def _first_load(place: Path) -> ctypes.CDLL:
    try:
        return _load(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            place.unlink()
        raise MissingDependencyError(
            f"native=True: cannot load the compiled library: {error}; point XDG_CACHE_HOME to another folder or leave "
            "native at its default"
        ) from None


def _load(place: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(place))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.update.argtypes = [pointer, integer, *[pointer] * 9, integer]
    library.update.restype = None
    return library


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "cbs"


@cache
def _key() -> str:
    return _hash(repr((SOURCE.read_bytes(), FLAGS, sys.platform, platform.machine(), _processor())).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _identity(compiler: str) -> str:
    """What changes as another compiler is installed in its place."""
    real = os.path.realpath(compiler)
    status = os.stat(real)
    return f"{real} {status.st_size} {status.st_mtime_ns}"


def _processor() -> str:
    """What tells processors apart whose instructions differ."""
    told = []
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if not line.strip():
                    # The first processor says it all; the others may be many.
                    break
                if line.startswith(("model name", "flags", "Features")):
                    told.append(line)
    except OSError:
        return platform.processor()
    return "".join(told)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A block that writes to the folder, which is made.

    Raises:
        MissingDependencyError: if it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise MissingDependencyError(
            f"native=True: cannot write to {folder}: {error.strerror or error}; point XDG_CACHE_HOME to a folder that "
            "can be written or leave native at its default"
        ) from None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, where the file system can; else several compile, and the last one's library stays."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
