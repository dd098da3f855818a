"""The results of a sweep on disk.

Layout of one sweep folder::

    sweep.json                      what was requested, with versions, hardware and provenance
    trials/<trial id>/record.parquet   the evaluation curve; summary and configuration in the file's metadata
    trials/<trial id>/steps.parquet    per-step columns (training loss, gradient moments); geometries in field metadata
    trials/<trial id>/timing.json      wall-clock facts
    trials/<trial id>/last-lines.txt   only if its process died: the last lines it wrote
    checkpoints/<trial id>.pt          state of a long trial that is running or was killed
    kept/<fingerprint>/<examples>.pt   state of a trial of that fingerprint, from which branches start
    too-large.json                  pass sizes that did not fit into memory, if any (:mod:`sweeps.running.worker`)
    trials/<trial id>.damaged          renamed by a sweep because a file in it could not be read

A trial is written to a hidden folder beside its final place and then renamed, so a reader never sees half a trial and a
kill at any moment loses at most the running trials. ``record.parquet`` and ``steps.parquet`` hold nothing that depends
on the clock or the machine's name: the same trial gives the same bytes. Both, ``timing.json`` and ``sweep.json`` hold a
checksum of themselves, which is checked whenever they are read (:mod:`cbs.files`).
"""

import contextlib
import itertools
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cbs.checksum import KEY, json_bytes, parquet_bytes, read_json
from cbs.errors import ConfigError, DamagedError, ResultsError, reason
from cbs.files import DAMAGED, atomic_file, atomic_folder, refuse_links, set_aside
from cbs.trial.config import TrialConfig
from cbs.trial.record import SCHEMA_VERSION, TrialResult, TrialStatus, WorkloadInfo
from cbs.trial.trial_files import (
    check_steps,
    check_version,
    measurement,
    read_record,
    read_steps,
    read_timing,
    record_table,
    steps_bytes,
)

MANIFEST = "sweep.json"
LOCK = "sweep.lock"
"""Name of the file in a sweep's folder that exists while the sweep runs; its owner updates it regularly."""
# Age of the lock file after which its owner counts as dead, where its process cannot be checked: 24 times the
# `BEAT_SECONDS` after which an owner touches it, as file systems that are shared may hang.
STALE_SECONDS = 120.0
LAST_LINES = "last-lines.txt"


class Store:
    """The folder of one sweep.

    Args:
        root: the folder; created by the first write.

    Example:
        >>> store = Store("results/of-no-sweep")
        >>> {result.config.batch_size: result.steps_to_target for result in store.results()}  # nothing has run there
        {}
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    @property
    def trials(self) -> Path:
        return self.root / "trials"

    def prepare(self) -> None:
        """Create the folder, see :meth:`create`, and remove half-written files of a killed run.

        Raises:
            ResultsError: if it cannot be created or written, or a part of it is a symbolic link.
        """
        self.create()
        for left_over in self.half_written():
            remove(left_over)

    def create(self) -> None:
        """Create the folder and check that it can be written.

        Raises:
            ResultsError: if it cannot be created or written, or a part of it is a symbolic link.
        """
        self.check_writable()
        with _writing(self.root):
            self.trials.mkdir(parents=True, exist_ok=True)
        self.check_writable()

    def check_writable(self) -> None:
        """Check that the folder, or the one it would be created in, can be written; creates nothing.

        Raises:
            ResultsError: if it cannot be written, or a part of it is a symbolic link.
        """
        for part in (self.trials, self.root / "checkpoints", self.root / "kept", self.root / MANIFEST):
            refuse_links(self.root, part)
        with _writing(self.root):
            there = next(folder for folder in (self.trials, *self.trials.parents) if folder.exists())
            # Tried, not asked: permissions say nothing of a full disk, a quota or a read-only mount.
            probe = there / f".tmp-{uuid.uuid4().hex}"
            probe.mkdir()
            probe.rmdir()

    def half_written(self) -> list[Path]:
        """Return the files that a killed process left half-written; symbolic links are not followed."""
        patterns = (".tmp-*", "trials/.tmp-*", "trials/*/.tmp-*", "checkpoints/.tmp-*", "kept/*/.tmp-*")
        paths = (path for pattern in patterns for path in self.root.glob(pattern))
        return sorted(
            path
            for path in paths
            if not any(folder.is_symlink() for folder in itertools.takewhile(self.root.__ne__, path.parents))
        )

    def damaged(self) -> list[Path]:
        """Return the files that were renamed because they could not be read."""
        patterns = (f"trials/*{DAMAGED}", f"checkpoints/*{DAMAGED}")
        return sorted(path for pattern in patterns for path in self.root.glob(pattern))

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write ``sweep.json`` atomically; the schema version is added."""
        _write_atomically(self.root / MANIFEST, json_bytes({"schema_version": SCHEMA_VERSION, **manifest}))

    def manifest(self) -> dict[str, Any]:
        """Return the content of ``sweep.json``.

        Raises:
            ResultsError: if it is missing, not JSON, or has another schema version.
        """
        path = self.root / MANIFEST
        try:
            manifest = read_json(path)
        except FileNotFoundError:
            raise ResultsError(f"{self.root} is not a sweep: it has no {MANIFEST}") from None
        except (OSError, ValueError, RecursionError) as error:
            remedy = f"restore it from a copy, or repair it and delete its entry {KEY}"
            raise ResultsError(f"cannot read {path}: {reason(error)}; {remedy}") from None
        check_version(manifest.get("schema_version"), path)
        return manifest

    def trial_ids(self) -> list[str]:
        """Return the ids of all stored trials, sorted."""
        if not self.trials.is_dir():
            return []
        names = (entry.name for entry in os.scandir(self.trials) if entry.is_dir())
        return sorted(name for name in names if not name.startswith(".") and not name.endswith(DAMAGED))

    def checkpoint_path(self, config: TrialConfig) -> Path:
        """Return the path of a running trial's checkpoint; creates the folder."""
        folder = self.root / "checkpoints"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"cannot write to {folder}: {reason(error)}") from None
        return folder / f"{config.trial_id}.pt"

    def kept_folder(self, fingerprint: str) -> Path:
        """Return the folder of the checkpoints that a trial keeps for its branches, see :mod:`cbs.training.parents`."""
        return self.root / "kept" / fingerprint

    def contains(self, config: TrialConfig) -> bool:
        """Return whether a result of ``config`` is stored."""
        return (self.trials / config.trial_id / "record.parquet").exists()

    def save(self, result: TrialResult, *, flushed: bool = True) -> None:
        """Store a result atomically, replacing an earlier result of the same trial.

        Args:
            result: what to store.
            flushed: whether its files have reached the disk when this returns. A measurement must have; a draft of a
                sweep, of what can be read from its source again, is written in place, and need not wait for the disk.

        Raises:
            ResultsError: if it cannot be written (full disk, permissions); the earlier result stays.
            OSError: if that happens to a draft, which whoever makes the draft reports.
        """
        folder = self.trials / result.trial_id
        if flushed:
            with atomic_folder(folder, f"trial {result.trial_id} to {self.trials}") as draft:
                _write(draft, result)
                for path in draft.iterdir():  # the rename must not reach the disk before what the files hold
                    with open(path, "rb") as file:
                        os.fsync(file.fileno())
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder, result)

    def write_last_lines(self, trial_id: str, lines: Sequence[str]) -> None:
        """Store the last lines that the process of a trial wrote before it died, beside the trial's record."""
        _write_atomically(self.trials / trial_id / LAST_LINES, "".join(f"{line}\n" for line in lines).encode())

    def update_record(self, result: TrialResult) -> None:
        """Rewrite the record of a stored trial atomically; its per-step columns and timing stay."""
        refuse_links(self.root, self.trials / result.trial_id)
        _write_atomically(self.trials / result.trial_id / "record.parquet", parquet_bytes(record_table(result)))

    def load(self, trial_id: str, *, with_steps: bool = True) -> TrialResult:
        """Read one trial.

        Args:
            trial_id: id from :meth:`trial_ids`.
            with_steps: also read the per-step columns; otherwise ``steps`` and ``geometries`` are empty.

        Raises:
            ResultsError: if a file is missing or damaged, or has another schema version.
        """
        folder = self.trials / trial_id
        table, summary = read_record(folder / "record.parquet")
        steps, geometries = read_steps(folder / "steps.parquet") if with_steps else ({}, ())
        timing = read_timing(folder / "timing.json")
        try:
            return TrialResult(
                config=TrialConfig.from_dict(summary["config"]),
                status=TrialStatus(summary["status"]),
                steps_to_target=summary["steps_to_target"],
                evaluations=list(map(measurement, table.to_pylist())),
                steps=steps,
                geometries=geometries,
                workload=None if summary["workload"] is None else WorkloadInfo(**summary["workload"]),
                message=summary["message"],
                micro_batch_size=summary.get("micro_batch_size"),
                stated=dict(summary.get("stated", {})),
                directions=dict(summary.get("directions", {})),
                decided=summary.get("decided", {}),
                timing=timing,
            )
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise DamagedError(folder / "record.parquet", error) from None

    def results(self, *, with_steps: bool = False) -> Iterator[TrialResult]:
        """Yield all stored trials in the order of their ids."""
        for trial_id in self.trial_ids():
            yield self.load(trial_id, with_steps=with_steps)

    def sound_results(self, tell: Callable[[str], None]) -> Iterator[TrialResult]:
        """Yield all undamaged trials without their per-step columns; rename damaged ones, so that they count as never
        run.

        Args:
            tell: called with a message about each damaged trial.
        """
        for trial_id in self.trial_ids():
            try:
                result = self.load(trial_id, with_steps=False)
                check_steps(self.trials / trial_id / "steps.parquet", result)
            except DamagedError as error:
                aside = set_aside(self.trials / trial_id)
                tell(f"{error.problem}; kept as {aside.name}, the trial runs again")
            else:
                yield result


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResultsError(
            f"cannot write results to {root}: {reason(error)}; choose another folder with --output"
        ) from None


def find_sweeps(path: str | os.PathLike[str]) -> list[Store]:
    """Return the sweeps at ``path``: the folder itself, or the folders in it.

    Raises:
        ResultsError: if the path is missing or holds no sweep.
    """
    root = Path(path)
    if not root.exists():
        raise ResultsError(f"no results at {root}: the path does not exist; run 'cbs sweep' first")
    if not root.is_dir():
        raise ResultsError(
            f"{root} is a file, not a results folder; 'cbs fit' takes a table of batch sizes and steps, 'cbs import' "
            "makes a folder of curves"
        )
    if (root / MANIFEST).exists():
        return [Store(root)]
    manifests = sorted(path for path in root.glob(f"*/{MANIFEST}") if not path.parent.name.startswith("."))
    stores = [Store(manifest.parent) for manifest in manifests]
    if not stores:
        raise ResultsError(f"no sweep in {root}: expected {MANIFEST} in it or in a folder below; run 'cbs sweep' first")
    return stores


def remove(path: Path) -> None:
    """Delete a file, a folder or a symbolic link; the target of a link stays.

    Raises:
        ResultsError: if it cannot be deleted.
    """
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot delete {path}: {reason(error)}") from None


def _write_atomically(path: Path, content: bytes) -> None:
    with atomic_file(path) as draft, open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write(folder: Path, result: TrialResult) -> None:
    (folder / "steps.parquet").write_bytes(steps_bytes(result))
    (folder / "record.parquet").write_bytes(parquet_bytes(record_table(result)))
    (folder / "timing.json").write_bytes(json_bytes(result.timing))


def finite_or_none(value: float | None) -> float | None:
    """Return ``value``, or ``None`` where it is not finite and JSON has no number for it."""
    return None if value is None or not math.isfinite(value) else value
