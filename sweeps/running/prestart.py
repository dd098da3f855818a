"""The private Ray of a command: one for all of its sweeps, started in the background while the command still plans."""

from __future__ import annotations

import sys

from cbs.interrupts import uninterrupted
from sweeps.running.cluster import Engine, quiet
from sweeps.running.resources import Resources


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
