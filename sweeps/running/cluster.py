"""A connection to Ray: a private one on this machine, or a running cluster."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError, Unfinished, reason
from cbs.interrupts import handlers_kept, interrupted, signals_as_interrupt, uninterrupted
from sweeps.running.access import check_guarded, token_of
from sweeps.running.resources import Resources
from sweeps.running.scratch import check_room, folder_of_sockets, remove_folder, remove_stale_folders, temporary_folder

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # Ctrl-C ends the sweep at once; Tune has no state that would have to be saved.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # The results folder is the state of a sweep; Tune's own snapshots would only cost time.
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Nobody reads Ray's log, which is deleted with its folder; on a full disk each line of it is an error on the
    # terminal.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Ray would run workers at low priority; a sweep is what the person is waiting for.
    "RAY_worker_niceness": "0",
    # Processes that Ray starts in advance are useless to Tune, which needs a special environment for its actors.
    "RAY_prestart_worker_first_driver": "0",
}
# Keeps glibc from returning activations to the kernel after every step: saves 20 % of a step at batch size 512 on a
# CPU.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "536870912"}

# Ray's word for a new private instance; without an address it would join RAY_ADDRESS, which cluster jobs have set
_PRIVATE = "local"

_TOKEN_HINT = "its token is looked for in ~/.ray/auth_token, or where RAY_AUTH_TOKEN_PATH says; --insecure does without"

MOST_CONNECT_SECONDS = 45.0  # Seconds to wait for a cluster; Ray itself would keep trying for minutes
END_SECONDS, MOST_END_SECONDS = 3.0, 20.0  # Seconds to wait for the end of a start that was interrupted, and of Ray

# System limits below which a private Ray ends this process, or never gets a worker running
_LEAST = {
    "NOFILE": (64, "open files (ulimit -n)"),
    "NPROC": (200, "processes and threads (ulimit -u)"),
    "AS": (3 * 10**9, "bytes of address space (ulimit -v, in kilobytes)"),
}


class EngineLost(BaseException):
    """Ray itself is gone. Not an ``Exception``, because Tune would react to one by calling Ray, which never returns."""


@contextlib.contextmanager
def connected(
    resources: Resources, engine: Engine | None = None, keep: Callable[[Engine], None] | None = None
) -> Iterator[bool]:
    """Connect to Ray for the duration of the block; yields whether the connection was made here.

    A private Ray is stopped at the end and its files are removed. An existing connection is used and left alone. Within
    the block nothing reaches standard output, because Ray prints there.

    Args:
        resources: the machine or cluster to connect to.
        engine: a Ray that was started already; this function takes it over.
        keep: called with the Ray instead of stopping it, if the block ends without an error.

    Raises:
        ConfigError: if the cluster cannot be reached.
        EngineLost: if a private Ray cannot be started.
        Unfinished: if there is no room for its files.
    """
    quiet()
    import ray

    if engine is None and ray.is_initialized():
        yield False
        return
    with output_to_error(), signals_as_interrupt():
        engine = engine or Engine(resources)
        try:
            engine.start()
            yield True
            if keep is not None:
                keep(engine)
                engine = None
        finally:
            if engine is not None:
                with uninterrupted():
                    engine.stop()


def quiet() -> None:
    """Set the environment variables that Ray reads when it is imported."""
    for key, value in (_QUIET | _ALLOCATOR).items():
        os.environ.setdefault(key, value)


class Engine:
    """A Ray instance to be started or connected to; if no address is given, a private one with a folder of its own."""

    def __init__(self, resources: Resources) -> None:
        self._options: dict[str, Any] = {
            "logging_level": logging.CRITICAL,
            "log_to_driver": False,
            "address": resources.address or _PRIVATE,
        }
        self._resources, self._token = resources, contextlib.ExitStack()
        self._folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._started, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        if resources.address is not None:
            return
        for name, (least, of) in _LEAST.items():
            limit, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
            if limit != resource.RLIM_INFINITY and limit < least:
                raise ConfigError(f"Ray needs {least:,} {of}, and this shell allows {limit:,}")
        self._folder = temporary_folder(folder_of_sockets())
        remove_stale_folders()
        self._options |= {
            "num_cpus": resources.local_workers * resources.cpus,
            "include_dashboard": False,
            "object_store_memory": 100 * 1024**2,  # trials share no objects; Ray refuses less than 75 MiB
            "_temp_dir": str(self._folder),
        }

    def begin(self) -> None:
        """Begin to start or connect to Ray, in a thread of its own: in the main thread Ray would take over SIGTERM, and
        no signal would reach a call that does not return. The thread stays, as Ray's processes die with it."""
        self._token.enter_context(token_of(self._resources.address, insecure=self._resources.insecure))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Start or connect to Ray; does nothing if that has been done.

        Raises:
            ConfigError, EngineLost, Unfinished: see :func:`connected`.
        """
        if self._thread is None:
            self.begin()
        if not self._started.wait(None if self._folder is not None else MOST_CONNECT_SECONDS):
            raise Unfinished(f"Ray at {self._options['address']} does not answer; is the cluster up ('ray status')?")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop or disconnect from Ray, whatever state it is in.

        A Ray whose start was interrupted is killed, and so is what is left of one that does not end by itself.
        """
        import ray

        from sweeps.running.control import end_processes

        if self._thread is not None:
            if interrupted() and self._folder is not None and not self._started.is_set():
                end_processes(self._folder)
            there = self._started.wait(END_SECONDS if interrupted() or self._folder is None else None)
            self._over.set()
            self._thread.join(MOST_END_SECONDS if there else 0.0)
            if self._thread.is_alive():
                atexit.unregister(ray.shutdown)  # it would not return
        if self._folder is not None:
            end_processes(self._folder)
            remove_folder(self._folder)
        self._token.close()

    def _run(self) -> None:
        try:
            import ray

            from sweeps.running.control import address

            logging.getLogger("ray").setLevel(logging.CRITICAL)
            if not ray.is_initialized():
                _start(self._options)
                given = self._resources.address
                if given is not None and not self._resources.insecure:
                    check_guarded(given if address() is None else ray.get_runtime_context().gcs_address)
            importlib.import_module("sweeps.running.tuning")
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            self._error = error
        self._started.set()
        self._over.wait()
        with handlers_kept():
            ray.shutdown()


def check_home(error: Exception | None = None) -> None:
    """Check that the node this process is connected to is alive.

    Args:
        error: the error that Ray raised, if this is the reason for the check.

    Raises:
        EngineLost: if the node is not alive.
    """
    import ray

    from sweeps.running.control import address, refused

    try:
        if refused(address()):
            raise EngineLost("its control service is gone") from error
        home = ray.get_runtime_context().get_node_id()
        alive = any(node["Alive"] for node in ray.nodes() if node["NodeID"] == home)
    except Exception as unreachable:  # noqa: BLE001 - Ray raises many types of error when it is gone
        raise EngineLost(reason(unreachable)) from error
    if not alive:
        raise EngineLost("its node is dead" if error is None else reason(error)) from error


def _start(options: dict[str, Any]) -> None:
    import ray

    from sweeps.running.control import died, watched

    private = options["address"] == _PRIVATE
    words = "cbs: Ray has died while it started; nothing is lost: give the same command again"
    try:
        with (
            watched(died(), lambda: print(words, file=sys.stderr, flush=True)) if private else contextlib.nullcontext(),
            c_without_errors(),
            handlers_kept(),
        ):
            ray.init(**options)
    except Exception as error:  # Ray raises many types of error when it cannot start
        check_room(error)
        where = options["address"]
        if where == _PRIVATE:
            raise EngineLost(reason(error)) from error
        raise ConfigError(f"cannot reach Ray at {where}: {reason(error)}; {_TOKEN_HINT}") from None


@contextlib.contextmanager
def output_to_error() -> Iterator[None]:
    """Send what C code writes to standard output to standard error, and discard what Python prints to standard output,
    which are messages of Ray about its own processes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def c_without_errors() -> Iterator[None]:
    """Discard what C code writes to standard error, such as Ray's message that it found a log level; what Python prints
    there is still shown."""
    kept = os.dup(2)
    try:
        with contextlib.ExitStack() as stack:
            if sys.stderr is sys.__stderr__ and sys.stderr is not None and sys.stderr.fileno() == 2:
                sys.stderr.flush()
                ours = stack.enter_context(open(kept, "w", buffering=1, closefd=False, errors=sys.stderr.errors))
                stack.enter_context(contextlib.redirect_stderr(ours))
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class PrestartedRay:
    """Starts a private Ray in the background, because starting and importing take long.

    A context manager: a Ray that nobody has taken over by its end is stopped.

    Args:
        resources: resources of the trials, on this machine; ``None`` to start nothing in advance. A connection that
            this process has already is used instead.

    Raises:
        ConfigError, Unfinished: as :func:`sweeps.running.cluster.connected`.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        self._engine: Engine | None = None
        if resources is not None and not ("ray" in sys.modules and sys.modules["ray"].is_initialized()):
            quiet()
            self._engine = Engine(resources)
            self._engine.begin()

    def __enter__(self) -> PrestartedRay:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            left = self.taken()
            if left is not None:
                left.stop()

    def taken(self) -> Engine | None:
        """Hand the Ray, which may still be starting, over to the caller, who has to stop it; ``None`` if there is
        none to take."""
        engine, self._engine = self._engine, None
        return engine

    def keep(self, engine: Engine) -> None:
        """Hold a Ray for the next sweep of the command."""
        self._engine = engine
