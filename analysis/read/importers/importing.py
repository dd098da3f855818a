"""``cbs import`` as a function: from sources to a sweep folder, which is written in one piece or not at all."""

import contextlib
import itertools
import math
import os
import shutil
import statistics
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbs
from analysis.formatting import plural
from analysis.read.importers.base import IMPORTERS, PRINTED, Claim, ImportedRun, importer
from analysis.read.importers.epochs import on_epochs
from analysis.read.importers.facts import facts_of, some
from analysis.read.importers.files import digest
from analysis.read.importers.settings import Settings
from analysis.read.importers.trials import ENDED_EARLY, trial
from analysis.read.importers.words import UNFINISHED
from cbs.errors import ConfigError, DataError, ResultsError, reason
from cbs.files import atomic_folder
from cbs.trial.record import TrialResult
from cbs.trial.store import MANIFEST, Store

AUTO = "auto"
_SHOWN = 5  # Names in a message
_CLEANED = {
    "duplicates": "dropped {duplicates} rows that repeat a step with the same value",
    "rounded": "{rounded} points moved to the nearest whole step, by 1 % at most",
    "restored": "{runs[restored]} went back to an earlier step, as where training is restored from a checkpoint: the "
    "rows after that count, and {earlier} do not",
    "restarted": "in {runs[restarted]} the step counter starts again: if it did so when training was resumed, two "
    "curves are mixed; give an axis that continues",
}
_REMEDY = "; choose another folder with --output"
_SCALE = 10.0  # Ratio of a metric to its target from which they seem to have different units, such as percent


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """Outcome of an import, with its trials in the order of the source. ``detected`` says how the format was
    recognised, if it was not given, one line per source; ``notes`` what was left out or changed."""

    folder: Path
    format: str
    detected: list[str]
    trials: list[TrialResult]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        configs = [entry.config for entry in self.trials]
        return {
            "folder": str(self.folder),
            "format": self.format,
            "detected": self.detected,
            "runs": len(configs),
            "workloads": sorted({config.workload.name for config in configs}),
            "optimizers": sorted({config.optimizer.name for config in configs}),
            "batch_sizes": sorted({config.batch_size for config in configs}),
            "lrs": len({config.lr for config in configs}),
            "seeds": len({config.seed for config in configs}),
            "statuses": dict(sorted(Counter(str(entry.status) for entry in self.trials).items())),
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """Return the lines to print."""
        content = self.to_json()
        statuses = ", ".join(f"{count} {status}" for status, count in content["statuses"].items())
        searched = f"{plural(content['lrs'], 'learning rate')}, {plural(content['seeds'], 'seed')}"
        return [
            f"imported {plural(content['runs'], 'run')} as {self.format} into {self.folder}: {statuses}",
            f"  workloads: {', '.join(content['workloads'])}; optimizers: {', '.join(content['optimizers'])}",
            f"  batch sizes: {', '.join(map(str, content['batch_sizes']))}; {searched}",
            *(f"  {line}" for line in self.detected),
            *(f"  note: {note}" for note in self.notes),
            f"next: cbs {'budget' if self.format == 'final_losses' else 'analyze'} {self.folder}",
        ]


def import_runs(
    sources: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    settings: Settings,
    *,
    format: str = AUTO,
    add: bool = False,
    command: str = "",
) -> ImportReport:
    """Import training curves of other tools into a sweep folder.

    Nothing is written before everything is read and checked, and the folder appears only when it is complete.

    Args:
        sources: files, folders or addresses, all of one format.
        output: the folder; it must not exist, or must be empty, unless ``add``, to an import with the same protocol.
        format: name in :data:`~analysis.read.importers.base.IMPORTERS`, or ``"auto"``.
        command: the command line, which is stored.

    Raises:
        ConfigError: if a setting is missing or unusable, or facts about the runs are missing.
        DataError: if a source is missing, damaged or contradicts itself.
        ResultsError: if the folder is in use, has another protocol, or cannot be written.
    """
    if not sources:
        raise ConfigError("nothing to import: give a file, a folder or an address")
    texts = [os.fspath(source) for source in sources]
    present = _present(Path(output), settings, add=add)
    name, detected = detect(texts, settings) if format == AUTO else (format, [])
    if settings.trials is not None and not IMPORTERS[name].has_studies:
        raise ConfigError(f"--trials is for formats with studies of several trials, and {name} is none")
    notes: list[str] = []
    imported = _read(texts, name, settings, notes)
    files = list(dict.fromkeys(path for run in imported for path in run.files))
    runs, facts = facts_of(_usable(imported, settings, notes), settings, notes)
    notes += on_epochs(runs, facts, settings)
    made = [trial(run, known, settings) for run, known in zip(runs, facts, strict=True)]
    results = [result for result, _ in made]
    _check_distinct(runs, results, present)
    notes += _on_curves(results, sum((counts for _, counts in made), Counter()))
    entry = {
        "source": texts,
        "format": name,
        "detected": detected,
        "files": len(files),
        "sha256": digest(files),
        "command": command,
        "settings": settings.to_json(),
        "notes": notes,
    }
    _write(Path(output), results, settings, entry, add=add)
    return ImportReport(folder=Path(output), format=name, detected=detected, trials=results, notes=notes)


def _present(output: Path, settings: Settings, *, add: bool) -> list[TrialResult]:
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


def _write(
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


def detect(sources: Sequence[str], settings: Settings) -> tuple[str, list[str]]:
    """Return the format of the sources, and how it was recognised, one line per source."""
    names, lines = set(), []
    for source in sources:
        if os.path.exists(Path(source) / MANIFEST):
            raise ConfigError(f"{source} is a sweep of cbs already: cbs analyze {source}")
        with _readable(source):
            claims = _left({name: claim for name in IMPORTERS if (claim := IMPORTERS[name]().claims(source, settings))})
        if not claims and not os.path.exists(source):
            raise DataError(
                f"no such file or folder: {source} (for Weights & Biases: entity/project or entity/project/run)"
            )
        if len(claims) != 1:
            candidates = " or ".join(f"{name} ({claim.why})" for name, claim in claims.items())
            what = f"may be {candidates}" if claims else "is of no known format"
            raise ConfigError(f"{source} {what}; choose one with --format: {', '.join(IMPORTERS)}")
        names |= set(claims)
        lines += [f"{source} read as {name}: {claim.why}" for name, claim in claims.items()]
    if len(names) > 1:
        raise ConfigError(
            f"the sources are of several formats ({', '.join(sorted(names))}); import one at a time with --add"
        )
    return names.pop(), lines


def _left(claims: Mapping[str, Claim]) -> dict[str, Claim]:
    """Return the claims that remain when every file goes to the formats that are most certain of it."""
    surest: dict[Path, int] = {}
    for claim in sorted(claims.values(), key=lambda claim: claim.certainty):
        surest |= dict.fromkeys(claim.files, claim.certainty)
    left = {
        name: claim
        for name, claim in claims.items()
        if not claim.files or any(surest[path] == claim.certainty for path in claim.files)
    }
    return {name: claim for name, claim in left.items() if claim.certainty > PRINTED} or left


def _read(sources: Sequence[str], format: str, settings: Settings, notes: list[str]) -> list[ImportedRun]:
    reader, imported, read_notes = importer(format), [], list[str]()
    for source in sources:
        with _readable(source):
            runs = list(reader.read(source, settings, read_notes))
        if not runs:
            raise DataError("; ".join([f"no runs as {format} at {source}: expected {reader.expected}", *read_notes]))
        imported += runs
    notes += dict.fromkeys(read_notes)
    return imported


@contextlib.contextmanager
def _readable(source: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {source}: {reason(error)}; check the path and its permissions") from None


def _usable(runs: Sequence[ImportedRun], settings: Settings, notes: list[str]) -> list[ImportedRun]:
    """Return the runs that have the metric, or whose status says that they ended before it was measured; note the
    rest."""
    places: dict[str, list[str]] = {}
    for run in runs:
        places.setdefault(run.name, []).append(run.place)
    for name, where in places.items():
        if len(where) > 1:
            raise DataError(
                f"run {name} appears twice, in {' and '.join(dict.fromkeys(where))}; rename or leave out one"
            )
    if not any(len(run.values) for run in runs):
        there = some(sorted({name for run in runs for name in run.metrics}), 4 * _SHOWN) or "none"
        raise DataError(f"no run has the metric {settings.measured!r}; available: {there}")
    words = [str(run.facts.get("status") or settings.constants.get("status")).strip().upper() for run in runs]
    counts = [len(run.values) > 0 or word in (*ENDED_EARLY, *UNFINISHED) for run, word in zip(runs, words, strict=True)]
    if out := [run.name for run, each in zip(runs, counts, strict=True) if not each]:
        notes.append(f"left out {len(out)} runs without {settings.metric}: {some(out, _SHOWN)}")
    return list(itertools.compress(runs, counts))


def _check_distinct(
    runs: Sequence[ImportedRun], results: Sequence[TrialResult], present: Sequence[TrialResult]
) -> None:
    names = [f"{result.trial_id}, which is in the folder already" for result in present]
    names += [f"run {run.name}" for run in runs]
    seen: dict[tuple[Any, ...], str] = {}
    for name, result in zip(names, [*present, *results], strict=True):
        of = result.config
        before = seen.setdefault((of.workload.name, of.optimizer.name, of.lr, of.batch_size, of.seed), name)
        if before != name:
            raise DataError(
                f"{name} has the optimizer ({of.optimizer.name}), learning rate ({of.lr:g}), batch size "
                f"({of.batch_size}) and seed ({of.seed}) of {before}; give each its seed, or an optimizer name that "
                "distinguishes them, import runs of other budgets into a folder of their own, or leave one out, or "
                "join them if one continues the other"
            )


def _on_curves(results: Sequence[TrialResult], cleaning: Counter[str]) -> Iterator[str]:
    runs = {name: plural(count, "run") for name, count in cleaning.items()}
    counts = {**cleaning, "runs": runs, "earlier": plural(cleaning["undone"], "earlier one")}
    yield from (words.format(**counts) for name, words in _CLEANED.items() if cleaning[name])
    curves = [
        values
        for result in results
        if len(values := [each.value for each in result.evaluations if each.step and math.isfinite(each.value)]) > 1
    ]
    target = results[0].config.target
    worse = sum(target.distance(values[-1]) > target.distance(values[0]) for values in curves)
    if worse > len(curves) / 2:
        side = target.direction
        yield f"{target.metric} gets worse along {worse} of {len(curves)} runs: is {side} the right direction?"
    best = [min(map(target.distance, values)) for values in curves]
    past = all(target.distance(values[0]) <= 0 for values in curves)
    ratio = abs(statistics.median(values[-1] for values in curves) / target.value) if best and target.value else 1.0
    if (past or min(best, default=0.0) > 0) and not 1 / _SCALE < ratio < _SCALE:
        known = [value for values in curves for value in values]
        how = "every run is past" if past else "no run reaches"
        yield (
            f"{how} the target {target.value:g}{' when first measured' * past}: {target.metric} is {min(known):.4g} to "
            f"{max(known):.4g}; is it in the unit of the target?"
        )
