"""The folder of an import: check whether it may be written, and write it atomically."""

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbs
from analysis.read.importers.settings import Settings
from cbs.errors import ResultsError, reason
from cbs.files import atomic_folder
from cbs.trial.record import TrialResult
from cbs.trial.store import MANIFEST, Store

_REMEDY = "; choose another folder with --output"


def check(output: Path, settings: Settings, *, add: bool) -> list[TrialResult]:
    """Return the trials to which an import is added; none for a new folder.

    Raises an error if the folder is in use for something other than an import with the same protocol.
    """
    try:
        if output.is_file():
            raise ResultsError(f"{output} is a file{_REMEDY}")
        if not output.exists() or not any(output.iterdir()):
            return []
    except OSError as error:
        raise ResultsError(f"cannot read {output}: {reason(error)}{_REMEDY}") from None
    if not add:
        raise ResultsError(f"{output} is not empty{_REMEDY}, or --add to add to an import")
    store = Store(output)
    manifest = store.manifest()
    if "imported" not in manifest:
        raise ResultsError(f"{output} was not imported, so nothing can be added to it{_REMEDY}")
    stored = manifest.get("protocol")
    for name, value in settings.protocol().items():
        there = stored.get(name) if isinstance(stored, dict) else None
        if there != value:
            raise ResultsError(f"{output} holds runs with {name} = {there}, not {value}{_REMEDY}")
    return list(store.results())


def write(
    output: Path,
    results: Sequence[TrialResult],
    settings: Settings,
    entry: Mapping[str, Any],
    *,
    add: bool,
) -> None:
    """Write to a draft next to the folder, then move it there; if that fails, the earlier content stays."""
    output = Path(os.path.abspath(output))
    before: dict[str, Any] = {"name": output.resolve().name, "imported": [], "axes": {}}
    names = ("optimizers", "batch_sizes", "lrs", "seeds")
    rows = [
        (each.optimizer.name, each.batch_size, each.lr, each.seed) for each in (result.config for result in results)
    ]
    axes = dict(zip(names, zip(*rows, strict=True), strict=True))
    made = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "runs": len(results), "cbs": cbs.__version__}
    with atomic_folder(output, remedy=_REMEDY) as draft:
        for left_over in output.parent.glob(f".tmp-{output.name}-{'?' * len(uuid.uuid4().hex)}"):
            if left_over != draft:
                shutil.rmtree(left_over)
        if add and (output / MANIFEST).exists():  # without a manifest it is a draft left by a killed process
            before |= Store(output).manifest()
            shutil.copytree(output, draft, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)
        store = Store(draft)
        store.prepare()
        for result in results:
            store.save(result, flushed=False)
        store.write_manifest(
            {
                "name": before["name"],
                "protocol": settings.protocol(),
                "data_hash": None,
                "axes": {name: sorted({*before["axes"].get(name, []), *values}) for name, values in axes.items()},
                "imported": [*before["imported"], {**entry, **made}],
            }
        )
