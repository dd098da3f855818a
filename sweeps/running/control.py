"""Ray's control service (GCS). Once it is gone, calls of Ray do not return until Ray kills the process that made
them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import ray

from sweeps.running.scratch import remove_own_folders

CONNECT_SECONDS = 5.0
"""Seconds to wait for a port to answer."""
STUCK_SECONDS = 30.0
"""Seconds without a control service after which this process is ended. By then the main thread would have noticed,
unless it is stuck in a call that does not return. Ray itself kills the process after 60 s."""
LOOK_SECONDS = 1.0


def address() -> tuple[str, int] | None:
    """Return the address of the control service of the connected Ray; ``None`` if this process does not talk to it
    directly, as under Ray Client."""
    from ray.util.client import ray as client

    if client.is_connected():
        return None
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return host.strip("[]"), int(port)


def refused(place: tuple[str, int] | None) -> bool:
    """Return whether connections are refused there; a slow service, or one behind a failing network, may still
    answer."""
    if place is None:
        return False
    try:
        socket.create_connection(place, timeout=CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


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
        gone: returns whether the control service is gone.
        last_words: called before the exit; reports the reason and releases what others wait for.
    """
    over = threading.Event()

    def watch() -> None:
        since = 0.0
        while not over.wait(LOOK_SECONDS):
            since = since + LOOK_SECONDS if gone() else 0.0
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


def leave() -> None:
    """End this process at once, kill all processes that it started, and remove its temporary files."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    remove_own_folders()
    os._exit(1)
