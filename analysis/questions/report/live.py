"""Write the page of a running sweep repeatedly until the sweep has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from analysis.questions.report.answer import Page
from cbs.errors import ResultsError
from cbs.trial.store import LOCK, STALE_SECONDS, find_sweeps

REFRESH = 30
"""Seconds between two versions of the page."""


def follow(
    path: str | os.PathLike[str],
    write: Callable[[int | None], Page],
    note: Callable[[str], None],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> Page:
    """Write the page while a sweep at ``path`` runs, and once more when none is running.

    Args:
        path: path of the results.
        write: writes the page; receives the seconds after which a browser reloads it, ``None`` for never.
        note: called with each line of information for the user.
        pause: waits for a number of seconds.

    Raises:
        ResultsError: as for :func:`analysis.questions.report.answer.report`, once no sweep is running.
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
    """Return whether the owner of one of the sweeps at ``path`` has touched its lock recently."""
    for store in find_sweeps(path):
        try:
            age = time.time() - (store.root / LOCK).stat().st_mtime
        except FileNotFoundError:
            continue
        if abs(age) <= STALE_SECONDS:
            return True
    return False
