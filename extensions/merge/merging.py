"""``cbs merge`` as a function: merge folders with one protocol, such as those of two clusters, into a new folder.

Nothing is averaged and nothing is lost: a trial that is in several folders must have the same numbers in all of them,
apart from times and host names. The pruning rule is then applied to all trials of a cell together, as a sweep does at
its end.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cbs.errors import ConfigError, DamagedError, ResultsError, reason
from cbs.files import atomic_folder, refuse_links
from cbs.training.parents import digest
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import LAST_LINES, MANIFEST, Store
from sweeps.folder.lock import LOCK
from sweeps.folder.manifest import code_changes, difference, latest_run, plan_of, provenance, union
from sweeps.launching.ledger import refuse_owner
from sweeps.launching.policies.rounds import ROUNDS
from sweeps.outlook.report import PLAN
from sweeps.search.pruning import settle
from sweeps.spec.axes import Cell

_OF_A_TRIAL = ("record.parquet", "steps.parquet", "timing.json", LAST_LINES)
# Files of a trial that are merged; and names in a folder that are merged or that commands create anew
_TAKEN = {MANIFEST, LOCK, PLAN, ROUNDS, "trials", "checkpoints", "kept", "analysis", "bounds.json"}


@dataclass
class Merged:
    """Result of a merge.

    Attributes:
        output: the new folder.
        trials: number of trials in it.
        taken: number of trials taken from each source.
        duplicates: number of trials that were in several sources with the same numbers.
        pruned: number of trials that are pruned because of a trial from another source.
        checkpoints: number of trials that will resume from a checkpoint.
        question: name of the command that answers next: ``local`` where there are branches.
        notes: what was left out or should be known, one line each.
    """

    output: str
    trials: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    pruned: int = 0
    checkpoints: int = 0
    question: str = "analyze"
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the lines to print."""
        counts = ", ".join(f"{count} from {source}" for source, count in self.taken.items())
        lines = [f"{self.trials} trials in {self.output}: {counts}"]
        if self.duplicates:
            lines.append(f"{self.duplicates} of them were in several folders, with the same numbers")
        if self.pruned:
            lines.append(f"{self.pruned} of them are PRUNED by the best trial of another folder")
        if self.checkpoints:
            lines.append(f"{self.checkpoints} trials resume from a checkpoint")
        return [*lines, *self.notes, f"next: cbs {self.question} {self.output}"]


def merge(sources: Sequence[Path], output: Path, command: str = "") -> Merged:
    """Merge sweeps into a new folder, which appears only when it is complete.

    Args:
        sources: folders, each of one sweep.
        output: the new folder; it must not exist, or must be empty.
        command: the command line, which is stored.

    Raises:
        ConfigError: if the folders cannot be merged by their paths, such as one given twice.
        ResultsError: if one is not a sweep, is in use, or does not fit the others, or if the output cannot be written;
            no partial output is left behind.
    """
    stores = _checked(sources, output)
    plans = [plan_of(store) for store in stores]
    manifest, done = _manifest(stores, plans, command), Merged(str(output))
    _tell_unlike(done, stores, plans)
    held: dict[str, list[Store]] = {}
    for store in stores:
        done.taken[str(store.root)] = 0
        for trial_id in store.trial_ids():
            held.setdefault(trial_id, []).append(store)
    with atomic_folder(output, remedy="; choose another folder with --output") as draft:
        merged = Store(draft)
        merged.create()
        merged.write_manifest(manifest)
        results: dict[str, TrialResult] = {}
        for trial_id in sorted(held):
            chosen = _of_one(trial_id, held[trial_id], done)
            if chosen is not None:
                result, store = chosen
                _copy(store.trials / trial_id, merged.trials / trial_id, _OF_A_TRIAL, store.root)
                results[trial_id] = result.replace(steps={})  # copied as files; all at once may exceed the memory
                done.taken[str(store.root)] += 1
        done.trials = len(results)
        parents = [result.config.parent for result in results.values()]
        if any(parent and (parent.batch_factor, parent.lr_factor) != (1, 1) for parent in parents):
            done.question = "local"
        _settle(merged, results, done)
        _checkpoints(merged, stores, results, done)
        _kept(merged, stores)
        _write_plan(draft, stores, results, done)
        _write_rounds(draft, stores, done)
        for store in stores:
            refuse_owner(store)  # in case a sweep has started meanwhile
    return done


def _checked(sources: Sequence[Path], output: Path) -> list[Store]:
    if len(sources) < 2:
        raise ConfigError("cbs merge takes two folders or more, as in: cbs merge results/a results/b -o results/c")
    paths = [source.resolve() for source in sources]
    if len(set(paths)) < len(paths):
        raise ConfigError("cbs merge: a folder is given twice")
    if any(output.resolve().is_relative_to(path) or path.is_relative_to(output.resolve()) for path in paths):
        raise ConfigError(f"--output {output} must lie outside the folders that are merged")
    if output.is_symlink() or (output.exists() and not (output.is_dir() and not any(output.iterdir()))):
        raise ResultsError(f"{output} already exists; a merge makes a new folder: choose another with --output")
    stores = []
    for source in sources:
        store = Store(source)
        if not (source / MANIFEST).exists() and any(source.glob(f"*/{MANIFEST}")):
            raise ResultsError(f"{source} is a folder of sweeps; name those to merge one by one")
        if store.manifest().get("imported"):
            raise ResultsError(f"{source} was imported; to join imports use cbs import --add")
        for name in ("trials", "checkpoints", "kept", "runs", PLAN, ROUNDS):
            refuse_links(store.root, store.root / name)
        refuse_owner(store)
        stores.append(store)
    return stores


def _manifest(stores: Sequence[Store], plans: Sequence[dict[str, Any]], command: str) -> dict[str, Any]:
    """Return a joint manifest: the union of the axes of all sweeps, and all their runs in order of time."""
    first, axes = plans[0], plans[0]["axes"]
    for store, plan in zip(stores[1:], plans[1:], strict=True):
        changed = difference(first["protocol"], plan["protocol"]) or difference(
            first["data_hash"], plan["data_hash"], "data_hash"
        )
        if changed is not None:
            name, one, other = changed
            raise ResultsError(
                f"{stores[0].root} and {store.root} have different protocols: {name} = {one} in the first, {other} in "
                "the second; only trials of one protocol can be compared"
            )
        axes = union(axes, plan["axes"], stores[0].root)
    runs = sorted((run for plan in plans for run in plan["runs"]), key=lambda run: str(run.get("started", "")))
    merge_run = provenance(command) | {"merged": [str(store.root) for store in stores]}
    starts: dict[str, Any] = {}
    for plan in reversed(plans):  # where two folders know a start, that of the first counts
        starts |= plan.get("warm_start") or {}
    return first | {"axes": axes, "runs": [*runs, merge_run]} | ({"warm_start": starts} if starts else {})


def _tell_unlike(done: Merged, stores: Sequence[Store], plans: Sequence[dict[str, Any]]) -> None:
    for store, plan in zip(stores[1:], plans[1:], strict=True):
        if changes := code_changes(latest_run(plans[0]["runs"]), latest_run(plan["runs"])):
            done.notes.append(f"{stores[0].root} and {store.root} were run by different code: {', '.join(changes)}")
    for store in stores:
        others = [path.name for path in store.root.iterdir() if path.name not in _TAKEN and path.name[0] != "."]
        done.notes += [f"{store.root / name} is not merged" for name in sorted(others)]


def _of_one(trial_id: str, stores: Sequence[Store], done: Merged) -> tuple[TrialResult, Store] | None:
    """Return the record of a trial to keep among the readable ones: a final one if there is any, else the longest."""
    candidates = []
    for store in stores:
        refuse_links(store.root, store.trials / trial_id)
        try:
            candidates.append((store.load(trial_id), store))
        except DamagedError as error:
            done.notes.append(f"{error.problem}; left out" + (", the trial runs again" if len(stores) == 1 else ""))
    final = [pair for pair in candidates if pair[0].status.final]
    for result, store in final[1:]:
        differs = unlike(final[0][0], result)
        if differs:
            raise ResultsError(
                f"trial {trial_id} differs between {final[0][1].root} and {store.root} in {differs}: a trial has one "
                "result, so one of the two was run by other code or on other hardware; delete its folder in one of them"
            )
    done.duplicates += len(final) > 1
    counted = final or candidates
    return max(counted, key=lambda pair: pair[0].final_step) if counted else None


def unlike(one: TrialResult, other: TrialResult) -> str:
    """Say in what two final records of a trial differ; return an empty string if they agree.

    Times and hosts are ignored. If one of the two was pruned, only the part that both trained is compared, bit by bit.
    """
    if one.config != other.config:
        return "the configuration"
    pruned = TrialStatus.PRUNED in (one.status, other.status)
    if not pruned and (one.status, len(one.evaluations)) != (other.status, len(other.evaluations)):
        return f"how it ended, {one.status} and {other.status}"
    for mine, its in zip(one.evaluations, other.evaluations, strict=False):
        if set(mine.others) != set(its.others):
            return "what was measured"
        values, others = ({**asdict(row), **row.others} for row in (mine, its))
        for name in (name for name in values if name != "others"):
            if not _equal(values[name], others[name]):
                return f"{name} at step {mine.step}: {values[name]!r} and {others[name]!r}"
    if not pruned and not _equal(one.steps_to_target or 0.0, other.steps_to_target or 0.0):
        return "steps_to_target"
    if (one.workload, set(one.steps), one.geometries) != (other.workload, set(other.steps), other.geometries):
        return "what was recorded"
    if one.stated != other.stated:
        return "the settings that its program reported"
    for name in one.steps:
        length = min(len(one.steps[name]), len(other.steps[name]))
        if not pruned and len(one.steps[name]) != len(other.steps[name]):
            return f"the length of {name}"
        if not _equal(one.steps[name][:length], other.steps[name][:length]):
            return f"{name} of its steps"
    return ""


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(np.asarray(one, dtype=float), np.asarray(other, dtype=float), equal_nan=True))


def _copy(source: Path, target: Path, names: Iterable[str], root: Path) -> None:
    target.mkdir()
    for name in names:
        refuse_links(root, source / name)
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _settle(merged: Store, results: dict[str, TrialResult], done: Merged) -> None:
    """Apply the pruning rule (:mod:`sweeps.search.pruning`) in the folder and in ``results``."""
    factor = merged.manifest()["protocol"].get("prune_factor")
    if factor is not None and not (isinstance(factor, int | float) and factor > 1):
        raise ResultsError(f"protocol.prune_factor in {MANIFEST} must be null or above 1, got {factor!r}")
    cells: dict[Cell, list[TrialResult]] = {}
    for result in results.values():
        cells.setdefault(Cell.of(result.config), []).append(result)
    for members in cells.values():
        for changed in settle(members, factor):
            merged.update_record(changed)
            results[changed.trial_id] = changed
            done.pruned += 1


def _checkpoints(merged: Store, stores: Sequence[Store], results: dict[str, TrialResult], done: Merged) -> None:
    """Copy the latest checkpoint, and the folder of an external program, of every trial that is not finished."""
    for kind, pattern in (("checkpoints", "*.pt"), ("runs", "*")):
        paths: dict[str, Path] = {}
        for store in stores:
            for path in sorted((store.root / kind).glob(pattern)):
                refuse_links(store.root, path)
                trial_id = path.name.removesuffix(".pt")
                if trial_id in results and results[trial_id].status.final:
                    continue
                before = paths.get(trial_id)
                if before is None or path.stat().st_mtime > before.stat().st_mtime:
                    paths[trial_id] = path
        for path in paths.values():
            target = merged.root / kind / path.name
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(path, target, symlinks=True) if path.is_dir() else shutil.copyfile(path, target)
        done.checkpoints += len(paths) if kind == "checkpoints" else 0


def _kept(merged: Store, stores: Sequence[Store]) -> None:
    """Copy the checkpoints from which branches start; one that is in several folders must be equal in all of them."""
    for store in stores:
        for path in sorted((store.root / "kept").glob("*/*.pt")):
            refuse_links(store.root, path)
            target = merged.root / path.relative_to(store.root)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            elif digest(path) != digest(target):
                raise ResultsError(
                    f"{path} differs from the checkpoint of the same name in another folder, so branches in the two "
                    "folders have different starts; merge only one of these folders"
                )


def _write_plan(draft: Path, stores: Sequence[Store], results: dict[str, TrialResult], done: Merged) -> None:
    """Write the reason for every trial, taken from the first folder that has one; only a record, not used by sweeps."""
    rows: dict[str, dict[str, Any]] = {}
    for store in stores:
        try:
            text = (store.root / PLAN).read_text() if (store.root / PLAN).exists() else ""
            for row in map(json.loads, text.splitlines()):
                rows.setdefault(row["trial"], row)
        except (OSError, ValueError, KeyError, TypeError) as error:
            done.notes.append(f"{store.root / PLAN} cannot be read ({reason(error)}); left out")
    planned = (row | {"status": str(results[id].status) if id in results else None} for id, row in rows.items())
    (draft / PLAN).write_text("".join(json.dumps(row) + "\n" for row in planned))


def _write_rounds(draft: Path, stores: Sequence[Store], done: Merged) -> None:
    """Write the rounds that ``cbs sweep --precision`` decided; if a command ran in two folders, those of the first."""
    entries: dict[str, tuple[Any, Path]] = {}
    for store in stores:
        path = store.root / ROUNDS
        try:
            for entry in json.loads(path.read_text()) if path.exists() else ():
                asked = json.dumps(entry["asked"], sort_keys=True)
                before, of = entries.setdefault(asked, (entry, store.root))
                if before != entry:
                    done.notes.append(f"{of} and {store.root} have different rounds of --precision: those of {of} stay")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            done.notes.append(f"{path} cannot be read ({reason(error)}); left out")
    if entries:
        (draft / ROUNDS).write_text(json.dumps([entry for entry, _ in entries.values()], indent=2) + "\n")
