"""Format ``mlflow``: MLflow's file store, ``mlruns/EXPERIMENT/RUN``, read without MLflow.

A run is a folder with ``meta.yaml``, a file per metric in ``metrics`` (a line per point: timestamp, value, step; old
versions have no step, which then is 0), and a file per setting in ``params`` and ``tags``. Names with slashes are
folders. Deleted experiments are in ``.trash``; deleted runs stay where they are and are marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from analysis.read import cells
from analysis.read.importers.base import IMPORTERS, Claim, ImportedRun, Importer, in_folder, joined, run_of
from analysis.read.importers.files import below, read_mapping, read_text
from analysis.read.importers.lightning import EPOCH, STEP
from analysis.read.importers.settings import Settings
from cbs.errors import DataError

META, METRICS, PARAMS, TAGS = "meta.yaml", "metrics", "params", "tags"
_TRASH, _NAME_TAG = ".trash", "mlflow.runName"
_REMEDY = "copy the run again from where it was trained"
_ENDED = {1: "still running", 2: "scheduled", 4: "failed", 5: "killed"}
"""Status codes of runs whose curves may end before their budget."""
_PERHAPS_OF_TRAINER = (
    "have epochs from 0 on: if a Lightning Trainer logged them, each step is one less than the updates made; have it "
    "also log self.global_step, and give that with --column step=THEIRS"
)


@IMPORTERS.register("mlflow")
class MLflow(Importer):
    """The folder of a file store (``mlruns``), its parent, or the folder of an experiment or a run."""

    expected = "mlruns, or the folder of an experiment or a run, with meta.yaml in it"

    def claims(self, source: str) -> Claim | None:
        return Claim.of(_runs(Path(source)), f"runs with {META} and {METRICS}")

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield all runs that were not deleted."""
        top, axis = Path(source), settings.axis("step")
        wanted = dict.fromkeys([settings.measured, axis[1], *settings.fact_columns])
        stages: Counter[str] = Counter()
        for about in _runs(top):
            folder, meta = about.parent, read_mapping(about, _REMEDY)
            if _TRASH in folder.parts or meta.get("lifecycle_stage") == "deleted":
                stages["deleted"] += 1
                continue
            metrics = _named(folder / METRICS)
            params, tags = (
                {name: read_text(path, _REMEDY) for name, path in _named(folder / kind).items()}
                for kind in (PARAMS, TAGS)
            )
            if axis == (STEP, STEP) and EPOCH in metrics and next(_points(metrics[EPOCH]), (0, 1))[1] == 0:
                stages[EPOCH] += 1
            stages[_ENDED.get(meta["status"], "") if isinstance(meta.get("status"), int) else ""] += 1
            paths = {key: metrics[key] for key in wanted if key in metrics}
            yield run_of(
                joined(str(folder), {key: list(_points(path)) for key, path in paths.items()}, settings.measured),
                settings,
                axis,
                config=params | {TAGS: tags},
                metrics=metrics,
                files=(about, *paths.values()),
                **in_folder(folder, top, str(meta.get("run_name") or tags.get(_NAME_TAG) or folder.name)),
            )
        if stages["deleted"]:
            notes.append(f"left out {stages['deleted']} deleted runs")
        if stages[EPOCH]:
            notes.append(f"{stages[EPOCH]} runs {_PERHAPS_OF_TRAINER}")
        for words in _ENDED.values():
            if stages[words]:
                notes.append(f"{stages[words]} runs are {words}: their curves end where they stopped")


def _runs(top: Path) -> list[Path]:
    """Return the ``meta.yaml`` files of runs, whose folders have metrics, unlike those of experiments."""
    return [path for path in below(top, META) if (path.parent / METRICS).is_dir()]


def _named(folder: Path) -> dict[str, Path]:
    """Return the files by their path below the folder."""
    return {path.relative_to(folder).as_posix(): path for path in below(folder, "*")}


def _points(path: Path) -> Iterator[tuple[float, float]]:
    """Yield step and value of every line."""
    for number, line in enumerate(read_text(path, _REMEDY).splitlines(), start=1):
        parts = line.split()
        try:
            if len(parts) < 2:
                raise ValueError(f"{cells.shown(line)} is not a timestamp, value and step")
            yield cells.number(parts[2]) if parts[2:] else 0.0, cells.number(parts[1])
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; {_REMEDY}") from None
