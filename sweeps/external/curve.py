"""The curve of a trial, read again and again from the log that its program is writing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from analysis.arrays import Array
from analysis.read.importers import IMPORTERS, ImportedRun
from analysis.read.importers.trials import clean, measurements
from cbs.errors import ConfigError, DataError, reason
from cbs.training.reporting import REPORTS, SETTINGS, checked
from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement
from sweeps.external.process import OUTPUT
from sweeps.external.trainer import REPORT, ExternalTrainer

_LINES = (".jsonl", ".csv", ".tsv")
"""Files that are written line by line: what stands after the last end of a line is not whole yet."""

_SAME = ("batch_size", "lr", "seed")


class LoggedCurve:
    """What the log of a trial says so far.

    Args:
        trainer: says where and how.
        trial: whose.
        folder: of the trial.
        resumed: whether an earlier try left a part of the log; where the later one goes back, it counts.

    Attributes:
        evaluations: in order of their steps.
        changed: whether any file was written between the last two looks.
        problem: why the log could not be read the last time, in one line; empty where it could.
    """

    def __init__(self, trainer: ExternalTrainer, trial: TrialConfig, folder: Path, *, resumed: bool) -> None:
        self.evaluations: list[Measurement] = []
        self.problem, self.changed = "", False
        self._trainer, self._trial, self._folder, self._resumed = trainer, trial, folder, resumed
        self._seen: dict[Path, tuple[int, int]] = {}

    def update(self, *, whole: bool) -> bool:
        """Read the log if it has changed.

        Args:
            whole: whether nobody writes any more, and what was written is whole: the last line is one without an end,
                too.

        Returns:
            Whether there are evaluations that there were not.
        """
        seen = self._files()
        self.changed = seen != self._seen
        if not self.changed and not whole:
            return False
        self._seen = seen
        try:
            steps, values = self._read(list(seen), whole=whole)
            measured = measurements(self._trial, [int(step) for step in steps], values)
            self._check_begin(measured)
        except (DataError, OSError) as error:
            # A file may be read in the middle of being written; that it cannot be is a problem once nobody writes.
            self.problem = reason(error)
            return False
        self.problem = ""
        before, self.evaluations = len(self.evaluations), measured
        return len(self.evaluations) > before

    def _check_begin(self, measured: list[Measurement]) -> None:
        """Check that what was read at first is still there: a crossing may lie in what is not."""
        if self.evaluations and (not measured or measured[0].step > self.evaluations[0].step):
            now = f"begins at step {measured[0].step}" if measured else "is empty"
            raise DataError(
                f"the log {now}, and began at step {self.evaluations[0].step}: let the program keep it whole, neither "
                "rotated nor cut"
            )

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Size and time of every file in the folder, but for what the program prints and what it says of its settings;
        one would wait for ever for a pipe."""
        files = {}
        for root, _, names in os.walk(self._folder):
            for path in (Path(root) / name for name in names if name not in (OUTPUT, SETTINGS)):
                try:
                    about = path.stat()
                except FileNotFoundError:  # a temporary file of the program's
                    continue
                if stat.S_ISREG(about.st_mode):
                    files[path] = (about.st_size, about.st_mtime_ns)
        return files

    def _read(self, files: list[Path], *, whole: bool) -> tuple[Array, Array]:
        """Steps and values of a copy of the log, which nobody writes to."""
        with tempfile.TemporaryDirectory(prefix="cbs-log-") as scratch:
            copy = Path(scratch)
            for path in files:
                self._copy(path, copy / path.relative_to(self._folder), whole=whole)
            try:
                return self._reported(copy / REPORTS) if self._trainer.reads == REPORT else self._points(copy)
            except DataError as error:
                raise DataError(str(error).replace(scratch, str(self._folder))) from None

    def _reported(self, source: Path) -> tuple[Array, Array]:
        """What :func:`cbs.report` was told."""
        if not source.exists():
            return np.empty(0), np.empty(0)
        called = self._called(source)
        steps, values = self._points(source, "jsonl", {"step": "step", **called})
        try:
            same = np.array_equal(steps, self._points(source, "jsonl", {"examples": "examples", **called})[0])
        except DataError:
            same = False
        if not same:
            size = self._trial.batch_size
            raise DataError(
                f"report() got examples that are not steps times the batch size {size}: does the program train "
                "at the batch size it is given?"
            )
        return steps, values

    def _called(self, source: Path) -> dict[str, str]:
        """The metric is what ``report`` got as ``loss``, whatever ``--metric`` calls it, unless it got further numbers:
        then one of them may be meant, and a name that none has is an error."""
        with source.open(encoding="utf-8") as lines, contextlib.suppress(ValueError, TypeError):
            if set(json.loads(next(lines, "{}"))) == {"step", "examples", "loss"}:
                return {self._trainer.metric: "loss"}
        return {}

    @staticmethod
    def _copy(path: Path, copy: Path, *, whole: bool) -> None:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if whole or path.suffix.lower() not in _LINES:
            copy.symlink_to(path.resolve())
            return
        shutil.copyfile(path, copy)
        content = copy.read_bytes()
        copy.write_bytes(content[: content.rfind(b"\n") + 1])

    def _points(self, source: Path, format: str = "", columns: dict[str, str] | None = None) -> tuple[Array, Array]:
        """Steps and values, in order, each step once."""
        trial = self._trial
        settings = self._trainer.settings(trial, {**self._trainer.columns, **(columns or {})})
        runs = list(IMPORTERS[format or self._trainer.reads]().read(str(source), settings, []))
        named = {name for run in runs for name in run.metrics}
        measured = [run for run in runs if len(run.values)]
        if len(measured) > 1:
            names = ", ".join(run.name for run in measured)
            raise DataError(f"{len(measured)} runs have {settings.measured!r} in one folder: {names}")
        if not measured:
            if named:
                raise DataError(f"the log has no {settings.measured!r}; it has {', '.join(sorted(named))}")
            return np.empty(0), np.empty(0)
        run = measured[0]
        for name in _SAME:
            fact = run.facts.get(name)
            if fact is not None and float(fact) != float(getattr(trial, name)):
                raise DataError(f"the log says that {name} is {fact}, but the trial's is {getattr(trial, name)}")
        back = np.flatnonzero(np.diff(run.axis) < 0)
        if len(back) and not self._resumed:
            last, then = run.axis[back[0] : back[0] + 2]
            raise DataError(
                f"the log goes back from {run.unit} {last:g} to {then:g}: two runs in one log, or one that began again"
            )
        steps, values, _ = clean(_latest(run) if self._resumed else run, trial.batch_size, settings)
        return steps, values


def stated(folder: Path) -> dict[str, Any]:
    """What the program of a trial said of its settings, see :func:`cbs.training.reporting.report_settings`.

    Raises:
        DataError: if that is no JSON object of such settings.
    """
    path = folder / SETTINGS
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if not isinstance(content, dict):
            raise ConfigError("not a JSON object")
        return checked(content)
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise DataError(f"{SETTINGS}: {reason(error)}") from None


def _latest(run: ImportedRun) -> ImportedRun:
    """The run without what an earlier try logged at and after the step at which the later one went on.

    Raises:
        DataError: if the later one is back at the first step with the value that the earlier one ended with.
    """
    kept: list[int] = []
    axis, values = np.asarray(run.axis), np.asarray(run.values)
    for row, at in enumerate(axis):
        gone: list[int] = []
        while kept and axis[kept[-1]] >= at:
            gone.append(kept.pop())
        if gone and not any(axis[kept] > 0):
            last, first, now = values[[gone[0], gone[-1], row]]
            if abs(now - last) < abs(now - first):
                raise DataError(
                    f"after --resume the log is back at {run.unit} {at:g} with {now:.4g}, where it had {first:.4g} at "
                    f"first and {last:.4g} at its end: let the program continue to count where it resumes"
                )
        kept.append(row)
    return dataclasses.replace(run, axis=axis[kept], values=values[kept])
