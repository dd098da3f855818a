"""The private Ray of a command: one for all of its sweeps, started in the background while the command still plans."""

from __future__ import annotations

import importlib
from concurrent.futures import Future, ThreadPoolExecutor

from sweeps.running.cluster import Engine, Resources, quiet
from sweeps.running.interrupts import uninterrupted


class PrestartedRay:
    """Starts a private Ray in the background, because starting and importing take long.

    A context manager: a Ray that nobody has taken over by its end is stopped.

    Args:
        resources: resources of the trials, on this machine; ``None`` to start nothing in advance.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._engine: Future[Engine | None] | None = None
        if resources is not None:
            self._engine = self._pool.submit(_started, resources)

    def __enter__(self) -> PrestartedRay:
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            left, self._engine = self._engine, None
            self._pool.shutdown()
            engine = left.result() if left is not None and left.exception() is None else None
            if engine is not None:
                engine.stop()

    def taken(self) -> Engine | None:
        """Wait for the Ray and hand it over to the caller, who has to stop it; ``None`` if there is none to take.

        Raises:
            ConfigError, EngineLost, Unfinished: as :func:`sweeps.running.cluster.connected`.
        """
        if self._engine is None:
            return None
        self._engine.exception()  # waits; if interrupted here, the context manager still stops it
        engine, self._engine = self._engine, None
        return engine.result()

    def keep(self, engine: Engine) -> None:
        """Hold a Ray for the next sweep of the command."""
        self._engine = Future()
        self._engine.set_result(engine)


def _started(resources: Resources) -> Engine | None:
    """Return a running Ray; ``None`` if this process is already connected to one."""
    quiet()
    import ray

    if ray.is_initialized():
        return None
    engine = Engine(resources)
    try:
        engine.start()
        importlib.import_module("sweeps.running.tuning")
    except BaseException:
        engine.stop()
        raise
    return engine
