"""Format ``batch_science``: the data that Shallue et al. (2019, JMLR 20:112) released.

Layout: ``dataset/model/optimizer/batch_size/study.json`` and below it ``trial_id/metadata.json`` and
``trial_id/measurements.csv``; every study is a random search over several metaparameters.

Their protocol (``batch_science`` in google-research, README and ``data_loader.py``): steps to result are the fewest
over all COMPLETE trials of a study, the comparison is strict, INCOMPLETE trials are ignored, INFEASIBLE ones diverged
at some point. Here each trial is a learning rate of its own with one seed, so that the best learning rate of a batch
size is the best trial of its study: with a second seed, the analysis would average over trials, and rate a learning
rate by how many of its trials reached the target. If two trials have the same learning rate, one is stored as the next
representable number. INFEASIBLE trials are kept with their status but without their curve, which does not count.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from analysis.read import cells
from analysis.read.importers.base import IMPORTERS, ImportedRun, Importer, run_of
from analysis.read.importers.files import read_mapping
from analysis.read.importers.settings import Settings, fact
from analysis.read.table import Sheet, read_table
from cbs.errors import DataError
from cbs.trial.record import TrialStatus

STUDY, TRIAL, CURVE = "study.json", "metadata.json", "measurements.csv"
_REMEDY = "unpack the archive again"
_DEPTH = 4  # Number of folder levels from dataset to batch size

_COUNTED = {
    "INCOMPLETE": "ignored {} INCOMPLETE trials",
    "INFEASIBLE": "kept {} INFEASIBLE trials as DIVERGED, without their curves",
    "timed": "{} studies had a budget of time, not of steps (train_steps 0)",
    "stopped": "{} studies stopped bad trials early",
}


@IMPORTERS.register("batch_science")
class BatchScience(Importer):
    """The top folder, any folder of studies, or one study; a workload is a dataset and a model."""

    expected = f"folders dataset/model/optimizer/batch_size with {STUDY}"
    marks = ((STUDY,), STUDY)
    has_studies = True

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield every COMPLETE trial, or the first ``settings.trials`` of each study by trial id, and INFEASIBLE
        ones."""
        counts: Counter[str] = Counter()
        complete: dict[tuple[str, str], dict[int, int]] = {}
        for path in self.files(source):
            study, facts = _study(path, os.path.relpath(path.parent, source))
            workload, optimizer, batch_size = facts["workload"], facts["optimizer"], facts["batch_size"]
            sizes = complete.setdefault((workload, optimizer), {})
            if batch_size in sizes:
                twice = f"{workload}, {optimizer} at batch size {batch_size}"
                raise DataError(f"{path.parent}: a second study of {twice}; import it into a folder of its own")
            sizes[batch_size] = 0
            counts += Counter(timed=study["train_steps"] == 0, stopped=bool(study.get("early_stopping")))
            lrs: set[float] = set()
            for folder in _trial_folders(path.parent):
                trial = read_mapping(folder / TRIAL, _REMEDY)
                status = trial.get("status")
                if status not in ("COMPLETE", "INCOMPLETE", "INFEASIBLE"):
                    raise DataError(f"{folder / TRIAL}: status {status!r} is unknown; {_REMEDY}")
                counts[status] += 1
                if status == "INCOMPLETE" or (status == "COMPLETE" and sizes[batch_size] == settings.trials):
                    continue
                sizes[batch_size] += status == "COMPLETE"
                run = _run(folder, trial, facts, settings, path, study["train_steps"] or None)
                lr = run.facts["lr"]
                while lr in lrs:
                    lr = float(np.nextafter(lr, np.inf))
                lrs.add(lr)
                yield dataclasses.replace(run, facts={**run.facts, "lr": lr})
        notes += _notes(counts, complete)


def _study(path: Path, relative: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of a study's file, and the facts that all its trials share."""
    data = read_mapping(path, _REMEDY)
    above = Path(relative).parts[:-_DEPTH]
    try:
        workload = "/".join([*above, *(fact("workload", data.get(key)) for key in ("dataset", "model"))])
        facts = {name: fact(name, data.get(name)) for name in ("optimizer", "batch_size")}
        data["train_steps"] = cells.whole(data.get("train_steps"), 0)
        return data, {"workload": workload, "seed": 0} | facts
    except ValueError as error:
        raise DataError(
            f"{path}: {error}; it must name dataset, model, optimizer, batch_size, train_steps; {_REMEDY}"
        ) from None


def _trial_folders(study: Path) -> list[Path]:
    """Return the folders of the trials, sorted by trial id."""
    folders = [path for path in study.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for folder in folders:
        if not folder.name.isdecimal():
            raise DataError(f"{folder}: folders of trials are whole numbers; {_REMEDY}")
    return sorted(folders, key=lambda folder: int(folder.name))


def _run(
    folder: Path, trial: dict[str, Any], facts: dict[str, Any], settings: Settings, study: Path, budget: int | None
) -> ImportedRun:
    parameters = trial.get("parameters")
    if not isinstance(parameters, dict) or "learning_rate" not in parameters:
        raise DataError(f"{folder / TRIAL} has no parameters with a learning_rate; {_REMEDY}")
    try:
        facts = facts | {"lr": fact("lr", parameters["learning_rate"])}
    except ValueError as error:
        raise DataError(f"{folder / TRIAL}, learning_rate: {error}; {_REMEDY}") from None
    table = Sheet(str(folder / CURVE), {}, [])
    if trial["status"] == "INFEASIBLE":
        facts["status"] = TrialStatus.DIVERGED
    else:
        table = read_table(folder / CURVE)
        table.need(settings.measured, "see --metric")
    return run_of(
        table,
        settings,
        settings.axis("step"),
        name=os.path.join(facts["workload"], facts["optimizer"], str(facts["batch_size"]), folder.name),
        place=str(folder),
        facts=facts,
        config=parameters,
        max_steps=budget,
        files=(study, folder / TRIAL, *([folder / CURVE] if table.columns else [])),
    )


def _notes(counts: Counter[str], complete: dict[tuple[str, str], dict[int, int]]) -> Iterator[str]:
    for name, words in _COUNTED.items():
        if counts[name]:
            yield words.format(counts[name])
    for (workload, optimizer), sizes in complete.items():
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{size}: {count}" for size, count in sorted(sizes.items()))
            yield (
                f"{workload}, {optimizer}: unequal numbers of COMPLETE trials per batch size ({told}), which favours "
                f"those with more; take the same of each with --trials {min(sizes.values())}"
            )
