"""Format ``batch_science``: the data that Shallue et al. (2019, JMLR 20:112) released.

Layout: ``dataset/model/optimizer/batch_size/study.json`` and below it ``trial_id/metadata.json`` and
``trial_id/measurements.csv``; every study is a random search over several metaparameters.

Their protocol (``batch_science`` in google-research, README and ``data_loader.py``): steps to result are the fewest
over all COMPLETE trials of a study, the comparison is strict, INCOMPLETE trials are ignored, INFEASIBLE ones diverged
at some point. Here each trial is a learning rate of its own with one seed, so the best learning rate of a batch size is
the best trial of its study: a second seed would make the analysis average over trials, and rate a learning rate by how
many of its trials reached the target. Where two trials have the same learning rate, one is stored as the next
representable number. INFEASIBLE trials are kept with their status and without their curve, which does not count.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.read import cells
from analysis.read.importers.base import IMPORTERS, Claim, Run
from analysis.read.importers.files import read_mapping
from analysis.read.importers.runs import run_of
from analysis.read.importers.settings import Settings, fact
from analysis.read.table import Sheet, read_table
from cbs.errors import DataError
from cbs.record import TrialStatus

STUDY, TRIAL, CURVE = "study.json", "metadata.json", "measurements.csv"
_REMEDY = "unpack the archive again"
_DEPTH = 4
"""Folders from dataset to batch size."""


@dataclass(frozen=True)
class _Study:
    folder: Path
    workload: str
    optimizer: str
    batch_size: int
    train_steps: int
    early_stopping: bool


@IMPORTERS.register("batch_science")
class BatchScience:
    """The top folder, any folder of studies, or one study; one workload is a dataset and a model."""

    expected = f"folders dataset/model/optimizer/batch_size with {STUDY}"

    def claims(self, source: str) -> Claim | None:
        """A folder with a study somewhere below."""
        return Claim.of((folder / STUDY for folder in _studies(Path(source))), STUDY)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
        """Every COMPLETE trial, or the first ``settings.trials`` of each study by trial id, and the INFEASIBLE ones."""
        top = Path(source)
        studies = [_study(folder, top) for folder in sorted(_studies(top))]
        statuses: Counter[str] = Counter()
        complete: dict[tuple[str, str], dict[int, int]] = {}
        for study in studies:
            sizes = complete.setdefault((study.workload, study.optimizer), {})
            if study.batch_size in sizes:
                twice = f"{study.workload}, {study.optimizer} at batch size {study.batch_size}"
                raise DataError(f"{study.folder}: a second study of {twice}; import it into a folder of its own")
            taken: list[Run] = []
            used = 0
            for folder in _trial_folders(study.folder):
                data = read_mapping(folder / TRIAL, _REMEDY)
                status = data.get("status")
                if status not in ("COMPLETE", "INCOMPLETE", "INFEASIBLE"):
                    raise DataError(f"{folder / TRIAL}: status {status!r} is unknown; {_REMEDY}")
                statuses[status] += 1
                if status == "INCOMPLETE" or (status == "COMPLETE" and used == settings.trials):
                    continue
                used += status == "COMPLETE"
                taken.append(_run(study, folder, data, settings))
            sizes[study.batch_size] = used
            yield from _told_apart(taken)
        notes += _notes(studies, statuses, complete, settings)


def _studies(top: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(top):
        if STUDY in names:
            folders.clear()
            yield Path(root)


def _study(folder: Path, top: Path) -> _Study:
    path = folder / STUDY
    data = read_mapping(path, _REMEDY)
    parts = folder.relative_to(top).parts
    above = "/".join(parts[:-_DEPTH])
    try:
        names = [fact("workload", data.get(key)) for key in ("dataset", "model")]
        return _Study(
            folder,
            "/".join([above, *names] if above else names),
            fact("optimizer", data.get("optimizer")),
            cells.whole(data.get("batch_size"), 1),
            cells.whole(data.get("train_steps"), 0),
            bool(data.get("early_stopping")),
        )
    except ValueError as error:
        raise DataError(
            f"{path}: {error}; it must name dataset, model, optimizer, batch_size, train_steps; {_REMEDY}"
        ) from None


def _trial_folders(study: Path) -> list[Path]:
    """By trial id."""
    folders = [path for path in study.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for folder in folders:
        if not folder.name.isdecimal():
            raise DataError(f"{folder}: folders of trials are whole numbers; {_REMEDY}")
    return sorted(folders, key=lambda folder: int(folder.name))


def _run(study: _Study, folder: Path, data: dict[str, Any], settings: Settings) -> Run:
    parameters = data.get("parameters")
    if not isinstance(parameters, dict) or "learning_rate" not in parameters:
        raise DataError(f"{folder / TRIAL} has no parameters with a learning_rate; {_REMEDY}")
    facts = {
        "workload": study.workload,
        "optimizer": study.optimizer,
        "batch_size": study.batch_size,
        "lr": _lr(parameters["learning_rate"], folder),
        "seed": 0,
    }
    table = Sheet(str(folder / CURVE), {}, [])
    if data["status"] == "INFEASIBLE":
        facts["status"] = TrialStatus.DIVERGED
    else:
        table = read_table(folder / CURVE)
        table.need(settings.measured, "see --metric")
    return run_of(
        table,
        settings,
        settings.axis("step"),
        name=os.path.join(study.workload, study.optimizer, str(study.batch_size), folder.name),
        place=str(folder),
        facts=facts,
        config=parameters,
        metaparameters={"batch_size": study.batch_size, "status": data["status"], **parameters},
        max_steps=study.train_steps or None,
        files=(study.folder / STUDY, folder / TRIAL, *([folder / CURVE] if table.columns else [])),
    )


def _lr(cell: Any, folder: Path) -> float:
    try:
        return fact("lr", cell)
    except ValueError as error:
        raise DataError(f"{folder / TRIAL}, learning_rate: {error}; {_REMEDY}") from None


def _told_apart(runs: list[Run]) -> list[Run]:
    """The runs of a study, each with a learning rate of its own."""
    taken: set[float] = set()
    found = []
    for run in runs:
        lr = run.facts["lr"]
        while lr in taken:
            lr = float(np.nextafter(lr, np.inf))
        taken.add(lr)
        found.append(dataclasses.replace(run, facts={**run.facts, "lr": lr}))
    return found


def _notes(
    studies: list[_Study], statuses: Counter[str], complete: dict[tuple[str, str], dict[int, int]], settings: Settings
) -> Iterable[str]:
    if statuses["INCOMPLETE"]:
        yield f"ignored {statuses['INCOMPLETE']} INCOMPLETE trials"
    if statuses["INFEASIBLE"]:
        yield f"kept {statuses['INFEASIBLE']} INFEASIBLE trials as DIVERGED, without their curves"
    timed = sum(study.train_steps == 0 for study in studies)
    if timed:
        yield f"{timed} studies had a budget of time, not of steps (train_steps 0)"
    stopped = sum(study.early_stopping for study in studies)
    if stopped:
        yield f"{stopped} studies stopped bad trials early"
    for (workload, optimizer), counts in complete.items():
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{size}: {count}" for size, count in sorted(counts.items()))
            yield (
                f"{workload}, {optimizer}: unequal numbers of COMPLETE trials per batch size ({told}), which favours "
                f"those with more; take the same of each with --trials {min(counts.values())}"
            )
