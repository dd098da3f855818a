"""Ray's control service (GCS). Once it is gone, calls of Ray do not return until Ray kills the process that made
them."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ray

from sweeps.running.scratch import remove_own_folders

# Seconds to wait for a port to answer
CONNECT_SECONDS = 5.0
# Seconds without a control service after which this process is ended. By then the main thread would have noticed,
# unless it is stuck in a call that does not return. Ray itself kills the process after 60 s.
STUCK_SECONDS = 30.0
LOOK_SECONDS = 1.0  # Seconds between two looks at the control service


def address() -> tuple[str, int] | None:
    """Return the address of the control service of the connected Ray; ``None`` if this process does not talk to it
    directly, as under Ray Client."""
    from ray.util.client import ray as client

    if client.is_connected():
        return None
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return host.strip("[]"), int(port)


def refused(endpoint: tuple[str, int] | None) -> bool:
    """Return whether connections are refused there; a slow service, or one behind a failing network, may still
    answer."""
    return isinstance(_failure(endpoint), ConnectionRefusedError)


def silent(endpoint: tuple[str, int] | None) -> bool:
    """Return whether nobody can be connected to there, for whatever reason."""
    return _failure(endpoint) is not None


def _failure(endpoint: tuple[str, int] | None) -> OSError | None:
    try:
        if endpoint is not None:
            socket.create_connection(endpoint, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def died() -> Callable[[], bool]:
    """Return a function that tells whether a control service started by this process after this call has died."""
    import psutil  # Ray brings it

    me, seen = psutil.Process(), {child.pid for child in psutil.Process().children()}

    def dead() -> bool:
        for child in me.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.pid not in seen and child.name().startswith("gcs_server"):
                    return child.status() == psutil.STATUS_ZOMBIE
        return False

    return dead


@contextlib.contextmanager
def watched(gone: Callable[[], bool], last_words: Callable[[], None]) -> Iterator[None]:
    """While the block waits for Ray, end this process with exit code 1 once it cannot continue.

    The main thread is then in a call of Ray that will not return, where no signal or exception reaches it.

    Args:
        gone: returns whether the control service is gone, after :data:`CONNECT_SECONDS` at the latest.
        last_words: called before the exit; reports the reason and releases what others wait for.
    """
    over = threading.Event()

    def watch() -> None:
        since, looked = 0.0, time.monotonic()
        while not over.wait(LOOK_SECONDS):
            lost, before, looked = gone(), looked, time.monotonic()
            # the clock also runs while this process is stopped or the machine sleeps
            since = since + min(looked - before, LOOK_SECONDS + CONNECT_SECONDS) if lost else 0.0
            if since >= STUCK_SECONDS:
                try:
                    last_words()
                finally:
                    leave()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def end_processes(folder: Path) -> None:
    """Kill all processes that were started with a folder of temporary files, such as Ray's own, and their descendants;
    Ray's agents would notice only after many seconds that the others are gone, and make the folder anew meanwhile.

    All are stopped before one is killed, as they may be starting others, whose parents would no longer be known.
    """
    import psutil

    stopped: dict[int, psutil.Process] = {}
    looking = True
    try:
        while looking:
            looking = False
            for process in psutil.process_iter(["cmdline", "ppid"]):
                known = process.pid in stopped or process.pid == os.getpid()
                ours = any(str(folder) in word for word in process.info["cmdline"] or ())
                if not known and (ours or process.info["ppid"] in stopped):
                    looking = True
                    stopped[process.pid] = process
                    with contextlib.suppress(psutil.Error):
                        process.suspend()
    finally:
        for process in stopped.values():
            with contextlib.suppress(psutil.Error):
                process.kill()


def leave() -> None:
    """End this process at once, kill all processes that it started, and remove its temporary files."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    remove_own_folders()
    os._exit(1)
