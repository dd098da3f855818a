"""A file or folder is written beside its place and then moved there, so a failure leaves nothing half-written."""

import contextlib
import errno
import itertools
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from cbs.errors import ResultsError, reason

DAMAGED = ".damaged"  # End of the name of what was set aside

# Bytes that every machine can hold, so that it need not be asked for each of thousands of small files
ALWAYS_FITS = 2**20


def ended(path: Path) -> Path:
    """The path, checked to lead to no device or pipe, whose bytes may have no end or never come.

    Raises:
        OSError: if it does.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path  # who opens it says why
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return path
    if os.path.exists(os.path.realpath(path)):  # a pipe of the shell, /dev/fd/63, has no place
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path


def memory() -> int:
    """Bytes of memory of this machine, or of the control group that this process is in, as in a container."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def check_fits(size: float) -> None:
    """Check that the memory of this machine could hold what is about to be read.

    Args:
        size: bytes that it takes.

    Raises:
        OSError: if it could not.
    """
    if size > ALWAYS_FITS and size > memory():
        has = f"{memory() / 1e9:.3g} GB"
        raise OSError(errno.ENOMEM, f"it would take {size / 1e9:.3g} GB of memory, and this machine has {has}")


def whole(path: Path, times: float = 10.0) -> Path:
    """The path, checked to lead to something with an :func:`ended` that memory can hold.

    Args:
        path: the file.
        times: how many times its size reading takes; text cut into cells or JSON takes about ten times.

    Raises:
        OSError: if it does not.
    """
    with contextlib.suppress(FileNotFoundError):
        check_fits(times * ended(path).stat().st_size)
    return path


def move(path: Path, to: Path) -> None:
    """Rename a file or folder; copy and delete a folder that the system cannot rename, as in a container, whose file
    system has layers.

    Raises:
        OSError: if it can do neither; ``path`` is then still there.
    """
    try:
        path.rename(to)
    except OSError as error:
        if error.errno != errno.EXDEV or not path.is_dir():
            raise
        try:
            shutil.copytree(path, to, symlinks=True)
        except OSError:
            shutil.rmtree(to, ignore_errors=True)
            raise
        shutil.rmtree(path)


def set_aside(path: Path) -> Path:
    """Rename a file or folder that cannot be read, so that it is out of the way and nothing is lost; returns its name.

    Raises:
        ResultsError: if it cannot be renamed.
    """
    number = itertools.count(2)
    aside = path.with_name(path.name + DAMAGED)
    while os.path.lexists(aside):
        aside = path.with_name(f"{path.name}-{next(number)}{DAMAGED}")
    try:
        move(path, aside)
    except OSError as error:
        raise ResultsError(f"cannot rename {path}, which is damaged: {reason(error)}") from None
    return aside


def refuse_links(root: Path, path: Path) -> None:
    """Check that nothing between a folder and what is to be written in it is a symbolic link, which could lead
    anywhere; the folder itself may be one.

    Raises:
        ResultsError: naming the link.
    """
    for folder in (path, *path.parents):
        if folder == root:
            return
        if folder.is_symlink():
            raise ResultsError(f"{folder} is a symbolic link, nothing is written through it; remove it")


@contextlib.contextmanager
def atomic_file(path: Path, what: str = "", remedy: str = "") -> Iterator[Path]:
    """A draft beside ``path``, with the same suffix; it takes the place of ``path`` once the block is done.

    Args:
        path: the file; its folder is made.
        what: it is, for the message: ``"the report to "``.
        remedy: end of the message.

    Raises:
        ResultsError: if the file cannot be written; what was there before stays.
    """
    draft = path.with_name(f".tmp-{uuid.uuid4().hex}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise ResultsError(f"cannot write {what}{path}: {reason(error)}{remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, what: str = "", remedy: str = "") -> Iterator[Path]:
    """A draft beside ``path``, called ``.tmp-NAME-*``; it takes the place of ``path`` once the block is done.

    Args:
        path: the folder; the one above it is made.
        what: is written, for the message; ``path`` when absent.
        remedy: end of the message.

    Raises:
        ResultsError: if the folder cannot be written; what was there before stays.
    """
    unique = uuid.uuid4().hex
    draft, replaced = (path.with_name(f".tmp-{kind}{path.name}-{unique}") for kind in ("", "replaced-"))
    try:
        draft.mkdir(parents=True)
        yield draft
        if path.exists():
            move(path, replaced)
        move(draft, path)
    except OSError as error:
        if replaced.exists() and not path.exists():
            move(replaced, path)
        raise ResultsError(f"cannot write {what or path}: {reason(error)}{remedy}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def inner_path(outer: Path, inner: Path) -> str | None:
    """``inner`` from inside the folder ``outer``, ``/`` between its parts; ``None`` where it does not lie in it."""
    folder, path = outer.resolve(), inner.resolve()
    return path.relative_to(folder).as_posix() if folder in path.parents else None
