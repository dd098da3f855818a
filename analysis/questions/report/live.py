"""The page of a sweep that is running: written again and again until it has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from analysis.questions.report.answer import Page
from cbs.errors import ResultsError
from cbs.trial.store import LOCK, STALE_SECONDS, find_sweeps

REFRESH = 30
"""Seconds between two pages."""


def follow(
    path: str | os.PathLike[str],
    write: Callable[[int | None], Page],
    note: Callable[[str], None],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> Page:
    """Write the page while a sweep at ``path`` runs, and once more when none does.

    Args:
        write: writes it; is given the seconds after which a browser is to load it again, ``None`` for never.
        note: tells a person a line.
        pause: waits so many seconds.

    Raises:
        ResultsError: as of :func:`analysis.questions.report.answer.report`, once no sweep runs any more.
    """
    if not running(path):
        note(f"no sweep is running in {path}: the page is written once")
    told = False
    while running(path):
        try:
            page = write(REFRESH)
        except ResultsError as error:
            note(f"not yet: {error}")  # no trial has ended, or none got far enough
        else:
            if not told:
                note(f"open {page.path} in a browser; it is written again every {REFRESH} s")
            told = True
        pause(REFRESH)
    return write(None)


def running(path: str | os.PathLike[str]) -> bool:
    """Whether the owner of one of the sweeps at ``path`` has touched its lock of late."""
    for store in find_sweeps(path):
        try:
            age = time.time() - (store.root / LOCK).stat().st_mtime
        except FileNotFoundError:
            continue
        if abs(age) <= STALE_SECONDS:
            return True
    return False
