"""The curve of a trial, read repeatedly from the log that its program is writing."""

import contextlib
import dataclasses
import json
import math
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from analysis.quantities import Array
from analysis.read.importers import ImportedRun
from analysis.read.importers.base import ASK_SECONDS, importer
from analysis.read.importers.trials import clean, measurements
from cbs.errors import ConfigError, DataError, reason
from cbs.training.reporting import REPORTS, SETTINGS, checked
from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement
from sweeps.external.process import OUTPUT
from sweeps.external.trainer import REPORT, ExternalTrainer

# Suffixes of files that are written line by line: what follows the last line break is not yet complete
_LINES = (".jsonl", ".csv", ".tsv", ".log")
_SAME = ("batch_size", "lr", "seed")

_HEAD = 2**16  # Bytes of the program's output that are searched for the address of an online run
# Bytes at the start of a log, and before its end when it was last read, that are read again: what holds for the whole
# run stands at the start, and a measurement may have several lines.
_WINDOW = 2**16


class AnotherTrialError(DataError):
    """The log belongs to a run with other settings than the trial's; it will not change."""


class LoggedCurve:
    """Follows the log of a trial.

    Args:
        resumed: whether an earlier attempt left a part of the log; if the log then goes back to an earlier step, the
            later values count.

    Attributes:
        evaluations: evaluations in order of steps.
        changed: whether any file was written between the last two reads.
        problem: why the log could not be read the last time, in one line; empty if it could.
        hopeless: whether the problem will stay, whatever the program writes.
    """

    def __init__(self, trainer: ExternalTrainer, trial: TrialConfig, folder: Path, *, resumed: bool) -> None:
        self.evaluations: list[Measurement] = []
        self.problem, self.changed, self.hopeless = "", False, False
        self._trainer, self._trial, self._folder, self._resumed = trainer, trial, folder, resumed
        self._seen: dict[Path, tuple[int, int]] = {}
        self._ends: dict[Path, tuple[int, bytes]] = {}  # where the last read of a log ended, and how the log began
        self._address = getattr(trainer.importer, "address", None)
        self._online, self._asked = "", -math.inf

    @property
    def nothing(self) -> str:
        """Message for a log that has no value after step 0."""
        how = " (it calls cbs.report, or --reads names its log)" if self._trainer.reads == REPORT else ""
        return f"logged no {self._trial.target.metric!r} after step 0{how}"

    def update(self, *, whole: bool) -> bool:
        """Read the log if it has changed; return whether there are new evaluations. If it is ``whole``, as the program
        has ended, a last line without a line break counts too."""
        seen = self._files()
        self.changed, self._seen = seen != self._seen, seen
        server = "" if whole else self._server()
        if not (whole or server or self.changed):
            return False
        try:
            if (measured := None if whole or server else self._longer(list(seen))) is None:
                steps, values = self._points(server) if server else self._read(list(seen), whole=whole)
                measured = measurements(self._trial, [int(step) for step in steps], values)
            self._check_begin(measured)
        except (DataError, OSError) as error:
            # A file may be read while it is being written; an error matters only once the program has ended.
            self.problem, self.hopeless = reason(error), isinstance(error, AnotherTrialError)
            return False
        self.problem = ""
        before, self.evaluations = len(self.evaluations), measured
        return len(self.evaluations) > before

    def _longer(self, files: list[Path]) -> list[Measurement] | None:
        """Return the evaluations known with those of the lines that came since; ``None`` if a log has to be read from
        its start: it was replaced, what came does not continue it, or a program that resumes may go back."""
        known = {row.step: row for row in self.evaluations}
        if self._resumed or not known:
            return None
        with contextlib.suppress(DataError):
            steps, values = self._read(files, whole=False, further=True)
            came = {row.step: row for row in measurements(self._trial, [int(step) for step in steps], values)}
            if all(step in known or step > self.evaluations[-1].step for step in came):
                return list((known | came).values())
        return None

    def _server(self) -> str:
        """Return the address of the program's online run, whose file here is empty until it ends, if it is time to ask
        the server; else nothing."""
        output = self._folder / OUTPUT
        if self._address is None or time.monotonic() - self._asked < ASK_SECONDS or not output.exists():
            return ""
        if not self._online:
            with output.open("rb") as lines:
                found = self._address.search(lines.read(_HEAD))
            self._online = b"/".join(found.groups()).decode() if found else ""
        self._asked = time.monotonic() if self._online else -math.inf
        return self._online

    def _check_begin(self, measured: list[Measurement]) -> None:
        """Check that the first evaluation read earlier is still in the log; the target may be crossed in a lost
        part."""
        if self.evaluations and (not measured or measured[0].step > self.evaluations[0].step):
            now = f"begins at step {measured[0].step}" if measured else "is empty"
            raise DataError(
                f"the log {now}, but earlier it began at step {self.evaluations[0].step}: the program must not rotate "
                "or truncate it"
            )

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Return size and modification time of the program's output, if that is the log, else of every other regular
        file in the folder except its report of settings. Pipes are skipped, because reading one would block."""
        files = {}
        prints = self._trainer.prints
        for root, _, names in os.walk(self._folder):
            for path in (Path(root) / name for name in names if name != SETTINGS and (name == OUTPUT) is prints):
                try:
                    about = path.stat()
                except FileNotFoundError:  # a temporary file of the program
                    continue
                if stat.S_ISREG(about.st_mode):
                    files[path] = (about.st_size, about.st_mtime_ns)
        return files

    def _read(self, files: list[Path], *, whole: bool, further: bool = False) -> tuple[Array, Array]:
        """Return steps and values from a copy of the log, because the program may be writing to the original; of what
        came since the last read and of both ends of what was there if only what is ``further`` is wanted."""
        with tempfile.TemporaryDirectory(prefix="cbs-log-") as scratch:
            copy = Path(scratch)
            for path in files:
                self._copy(path, copy / path.relative_to(self._folder), whole=whole, further=further)
            try:
                return self._reported(copy / REPORTS) if self._trainer.reads == REPORT else self._points(copy)
            except DataError as error:
                raise type(error)(str(error).replace(scratch, str(self._folder))) from None

    def _reported(self, source: Path) -> tuple[Array, Array]:
        """Return the steps and values that were passed to :func:`cbs.report`."""
        if not source.exists():
            return np.empty(0), np.empty(0)
        called = self._called(source)
        steps, values = self._points(source, "jsonl", {"step": "step", **called})
        same = False
        with contextlib.suppress(DataError):
            same = np.array_equal(steps, self._points(source, "jsonl", {"examples": "examples", **called})[0])
        if not same:
            size = self._trial.batch_size
            raise DataError(
                f"report() got examples that are not steps times the batch size {size}: does the program train "
                "at the batch size it is given?"
            )
        return steps, values

    def _called(self, source: Path) -> dict[str, str]:
        """Map the metric to ``loss`` if that is the only number passed to ``report``, whatever its name here."""
        with source.open(encoding="utf-8") as lines, contextlib.suppress(ValueError, TypeError):
            if set(json.loads(next(lines, "{}"))) == {"step", "examples", "loss"}:
                return {self._trainer.metric: "loss"}
        return {}

    def _copy(self, path: Path, copy: Path, *, whole: bool, further: bool) -> None:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if whole or path.suffix.lower() not in _LINES:
            copy.symlink_to(path.resolve())
            return
        end, begin = self._ends.get(path, (0, b""))
        with path.open("rb") as log:
            content = log.read(_WINDOW)
            size = log.seek(0, os.SEEK_END)
            if further and (size < end or not content.startswith(begin)):
                raise DataError(f"{path} is another log than it was")
            if further and end > 2 * _WINDOW:
                log.seek(end - _WINDOW)
                log.readline()  # the rest of one
                content = content[: content.rfind(b"\n") + 1]
            else:
                log.seek(len(content))
            self._ends[path] = size, content[:_WINDOW]
            content += log.read()
        copy.write_bytes(content[: content.rfind(b"\n") + 1])

    def _points(
        self, source: Path | str, format: str = "", columns: dict[str, str] | None = None
    ) -> tuple[Array, Array]:
        """Return steps and values in order, each step once."""
        trial = self._trial
        settings = self._trainer.settings(
            trial.target.value, {**self._trainer.columns, **(columns or {})}, trial.trial_id
        )
        runs = list(importer(format or self._trainer.reads).read(str(source), settings, []))
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
                raise AnotherTrialError(
                    f"the log says that {name} is {float(fact):g}, but the trial's is {getattr(trial, name)}"
                    + "; does the command count devices and accumulation?" * (name == "batch_size")
                )
        back = np.flatnonzero(np.diff(run.axis) < 0)
        if len(back) and not self._resumed:
            last, then = run.axis[back[0] : back[0] + 2]
            raise DataError(
                f"the log goes back from {run.unit} {last:g} to {then:g}: two runs in one log, or one that began again"
            )
        steps, values, _ = clean(_latest(run) if self._resumed else run, trial.batch_size, settings)
        return steps, values


def stated(folder: Path) -> dict[str, Any]:
    """Return the settings that the program of a trial reported, see :func:`cbs.training.reporting.report_settings`."""
    path = folder / SETTINGS
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if not isinstance(content, dict):
            raise ConfigError("not a JSON object")
        return checked(content)
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise DataError(f"{SETTINGS}: {reason(error)}") from None


def _latest(run: ImportedRun) -> ImportedRun:
    """Return the run without what an earlier attempt logged at or after the step at which the later one continued; an
    attempt that starts at the first step with the value with which the earlier one ended is refused."""
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
