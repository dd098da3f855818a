"""Format ``huggingface``: ``trainer_state.json`` of the Hugging Face ``Trainer``.

The file has the logs of a run, and neither its global batch size nor its peak learning rate: ``train_batch_size`` in it
is per device, without accumulation and world size. Both are asked for.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import IMPORTERS, Claim, Found, Request, Run
from analysis.read.importers.files import below, read_json, run_name
from analysis.read.importers.runs import run_of
from analysis.read.table import of_rows
from cbs.errors import DataError

STATE = "trainer_state.json"
_REMEDY = "copy it again from where the run was trained"
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_PER_DEVICE = "config.train_batch_size"


@IMPORTERS.register("huggingface")
class HuggingFace:
    """A ``trainer_state.json``, a checkpoint, the folder of a run, or a folder of runs."""

    def claims(self, source: str) -> Claim | None:
        """A state of the Trainer, or a folder with one somewhere below."""
        return Claim.of(below(Path(source), STATE.__eq__), STATE)

    def read(self, source: str, request: Request) -> Found:
        """One run per folder that checkpoints were saved in; of these the latest, whose log holds those before."""
        path = Path(source)
        states = [path] if path.is_file() else below(path, STATE.__eq__)
        if not states:
            raise DataError(f"no {STATE} at {source}: expected it, a checkpoint, or a folder of runs")
        if request.columns.get("batch_size") == _PER_DEVICE:
            raise DataError(
                f"{_PER_DEVICE} is per device, without gradient accumulation and world size; give the global batch "
                "size with --set batch_size=N, --runs or --pattern"
            )
        latest: dict[Path, tuple[tuple[float, int], Path, dict[str, Any]]] = {}
        for state in states:
            data = read_json(state, _REMEDY)
            folder = _folder(state)
            log = data.get("log_history")
            reached = (
                _number(data.get("global_step", 0), state, "global_step"),
                len(log) if isinstance(log, list) else 0,
            )
            if folder not in latest or reached > latest[folder][0]:
                latest[folder] = (reached, state, data)
        base = _folder(path) if path.is_file() else path
        read = [_run(folder, base, state, data, request) for folder, (_, state, data) in sorted(latest.items())]
        older = len(states) - len(latest)
        notes = [f"{older} checkpoints are older than the latest of their run and were not used"] if older else []
        return Found(
            runs=[run for run, _ in read],
            metrics=sorted({name for _, names in read for name in names}),
            files=[state for _, state, _ in latest.values()],
            notes=notes,
        )


def _folder(state: Path) -> Path:
    folder = state.resolve().parent if state.parent == Path() else state.parent
    return folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder


def _number(value: Any, state: Path, what: str) -> float:
    try:
        return cells.number(value)
    except ValueError as error:
        raise DataError(f"{state}: {what}: {error}; {_REMEDY}") from None


def _run(folder: Path, base: Path, state: Path, data: dict[str, Any], request: Request) -> tuple[Run, list[str]]:
    log = data.get("log_history")
    if not isinstance(log, list) or not all(isinstance(entry, dict) for entry in log):
        raise DataError(f"{state} has no list of logs called log_history; {_REMEDY}")
    run = run_of(
        of_rows(str(state), log),
        request,
        request.axis("step"),
        name=run_name(folder, base),
        aliases=(str(folder), folder.resolve().name),
        config={key: value for key, value in data.items() if key != "log_history"},
    )
    return run, [name for entry in log for name in entry if name not in ("step", "epoch")]
