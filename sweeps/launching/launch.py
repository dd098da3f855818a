"""A sweep from what was asked for to what is stored: its target and parts, its trials that are missing, its end."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cbs.compute.seeding import seeded
from cbs.errors import CbsError, ConfigError, ResultsError, Unfinished
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.problem import check_clipping
from cbs.registry.choices import Choice
from cbs.schedules.batch_size import ClosedLoop, build_batch_schedule
from cbs.schedules.learning_rate import build_schedule
from cbs.training.averaging import build_averaging
from cbs.training.batch_sizes import run_of
from cbs.training.birth import check_parent
from cbs.training.building import check_model
from cbs.training.metrics import METRICS
from cbs.training.noise_scale import build_probe
from cbs.training.parents import kept_path
from cbs.trial.config import COMMAND
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import MANIFEST, Store
from cbs.trial.target import Direction, Target
from cbs.workloads import Workload
from sweeps.folder.lock import Lock
from sweeps.folder.manifest import Bounds, merged_manifest
from sweeps.launching.trackers import Tracking
from sweeps.outlook.nearness import check_start
from sweeps.outlook.progress import Progress
from sweeps.outlook.report import reasons, write_reasons
from sweeps.running.patience import UNTIMED_SECONDS
from sweeps.running.run import SweepRun
from sweeps.search.search import Limits, Search
from sweeps.spec.axes import Cell
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built


class Interrupted(CbsError):
    """The sweep was stopped by a signal; every finished trial is stored."""

    exit_code = 130


def resolve(sweep: Sweep, target: float | None = None) -> Sweep:
    """Fill in the target from the workload, and check that every part of the sweep can be built.

    Args:
        sweep: the sweep as the user asked for it.
        target: value of the workload's metric to train to; ``None`` keeps the sweep's target or takes the workload's
            own. If trials train to a budget, none ends at the target.

    Raises:
        CbsError: for an unknown name, a refused option, or missing data.
    """
    if sweep.trial.workload.name == COMMAND:
        return sweep
    workload = built(sweep.trial.workload)
    if target is not None or sweep.target is None:
        sweep = sweep.replace(target=target_of(workload, sweep, target))
    further = [replace(each, direction=_direction(workload, each.metric)) for each in sweep.trial.further_targets]
    sweep = sweep.replace(further_targets=tuple(further))
    with seeded(0, "init"):
        model = check_model(workload.build_model())
    for one, other in itertools.combinations(sweep.axes.optimizers, 2):
        if _alike(one, other):
            raise ConfigError(
                f"{one} and {other} are the same run, as all options that differ have their defaults: leave one out"
            )
    for text, choice in sweep.choices.items():
        optimizer = build_optimizer(choice, model, sweep.lr_grid(text)[0])
        if sweep.trial.probe is not None:
            build_probe(sweep.trial.probe, model, optimizer, sweep.axes.batch_sizes[0]).detach()
        check_clipping(optimizer, sweep.trial.clip_norm)
        if sweep.trial.averaging is not None:
            build_averaging(sweep.trial.averaging, model, optimizer)
        if sweep.start.parent is not None:
            check_parent(workload, sweep.trial_at(Cell(text, sweep.axes.batch_sizes[0], 0), sweep.lr_grid(text)[0]))
    for study in sweep.studies():
        trial = sweep.trial_at(Cell(study.optimizer, study.batch_size, 0), 1.0)
        build_schedule(trial.schedule)
        planned = build_batch_schedule(trial.batch_schedule, run_of(trial, workload.tokens_per_example))
        if isinstance(planned, ClosedLoop) and trial.probe is None:
            raise ConfigError(
                f"batch schedule {trial.batch_schedule} needs a probe to measure the run: add one with --set probe=NAME"
            )
    return sweep


def target_of(workload: Workload, sweep: Sweep, value: float | None) -> Target:
    """Return the target on the metric of a sweep.

    Args:
        workload: names its own metric, and possibly others.
        sweep: names the metric to use.
        value: value to train to; ``None`` for the workload's own target, possible only on its own metric.

    Raises:
        ConfigError: if the metric has no target of its own and no value is given.
    """
    name = sweep.metric or workload.metric
    if name == workload.metric:
        value = workload.default_target if value is None else value
    elif value is None and not sweep.budgets:
        raise ConfigError(f"metric {name!r} has no target of its own: give --target VALUE, or a --budget")
    return Target(metric=name, value=value or 0.0, direction=_direction(workload, name))


def _direction(workload: Workload, metric: str) -> Direction:
    """Return whether lower or higher values of a metric are better."""
    if metric == workload.metric:
        return workload.direction
    if metric in METRICS:
        return METRICS[metric].direction
    return getattr(workload, "directions", {}).get(metric, workload.direction)


def _alike(one: Choice, other: Choice) -> bool:
    """Return whether two choices are equal once default options are filled in."""
    if one.name != other.name:
        return False
    plain = {
        key: list(value) if isinstance(value, tuple) else value for key, value in OPTIMIZERS[one.name].defaults.items()
    }
    return plain | one.options == plain | other.options


def output_folder(sweep: Sweep, recipe: Sweep, results: Path) -> Path:
    """Return the default folder of a sweep: the recipe's name, plus a fingerprint if the protocol was changed.

    The same command always gives the same folder, and other optimizers or batch sizes with the same protocol share it.
    """
    workload = sweep.trial.workload.name.rpartition(":")[2]
    if workload == COMMAND:
        return results / f"{COMMAND}-{sweep.protocol_fingerprint[:6]}"
    names = [recipe.name, *([workload] if sweep.trial.workload.name != recipe.trial.workload.name else [])]
    if sweep.protocol_fingerprint == recipe.protocol_fingerprint:
        return results / recipe.name
    return results / "-".join([*names, sweep.protocol_fingerprint[:6]])


def sweep(
    sweep: Sweep,
    output: Path,
    *,
    patience: float = UNTIMED_SECONDS,
    progress: Progress | None = None,
    command: str = "",
    limits: Limits | None = None,
    trackers: Sequence[str] = (),
) -> Generator[SweepRun, None, Search]:
    """Prepare a sweep, yield it if ``output`` does not contain every trial, and store what is left to store.

    Args:
        sweep: the sweep, with its target resolved (see :func:`resolve`).
        output: folder of the sweep; on a cluster it must be visible to every node under the same path.
        patience: seconds without a step or an evaluation after which a trial is stopped; see
            :mod:`sweeps.running.patience`.
        progress: displays what happens; ``None`` for no output.
        command: the command line, which is stored.
        limits: limits after which no trial starts any more; stored trials count towards them.
        trackers: names in :data:`sweeps.launching.trackers.TRACKERS`; stored and finished trials are written to these.

    Returns:
        The search with every result; if a limit was reached, it is not done.

    Raises:
        ConfigError: if a trial has reached the target before its first step.
        ResultsError: if the folder holds a sweep with another protocol, another process is using it, or a result cannot
            be written.
        Unfinished: if Ray dies and cannot be started again.
        Interrupted: on SIGINT, SIGTERM or SIGHUP.
    """
    progress, store = progress or Progress.silent(), Store(output)
    with _telling_how_to_go_on(output, command):
        store.create()
        with Lock(store, command, progress.standing) as lock, Tracking(trackers, store, progress.note) as tracking:
            search, there = _stored(store, sweep, command, progress.note)

            def last_words() -> None:
                how = _again(output, command)
                print(f"cbs: Ray has died (its control service is gone); {how}", file=sys.stderr, flush=True)
                lock.release()

            observers = (Bounds(store), progress, tracking, limits or Limits(), lock)
            run = SweepRun(search, store, patience, observers, last_words)
            run.find(there)
            with _continuing(output, command):
                if not run.over:
                    yield from _under_way(run)
                run.settle()
                if run.fatal is not None:
                    raise ResultsError(run.fatal) if run.again else ConfigError(run.fatal)
    return run.search


def _stored(store: Store, sweep: Sweep, command: str, note: Callable[[str], None]) -> tuple[Search, list[TrialResult]]:
    """Write the manifest, and return the search with the trials that need not run again, each checked."""
    store.prepare()
    manifest = merged_manifest(store, sweep, command)
    there = [result for result in store.sound_results(note) if _finished(result, sweep, store)]
    search = Search(sweep, there)
    *earlier, run_of_now = manifest["runs"]
    if earlier and search.done:
        manifest["runs"] = earlier  # nothing is left to run, and when it was measured stays
    elif changes := run_of_now.get("code_changes"):
        note(f"{store.root} holds trials run by different code ({', '.join(changes)}); sweep.json lists them")
    store.write_manifest(manifest)
    for result in there:
        check_start(result)
    return search, there


def _under_way(run: SweepRun) -> Iterator[SweepRun]:
    """Yield a sweep to whoever runs it, and write why every trial was run."""
    folder = run.store.root

    def record() -> None:
        if (folder / MANIFEST).exists():  # otherwise the folder was removed meanwhile
            write_reasons(reasons(run.search), folder)

    try:
        run.begin()
        yield run
    except BaseException:
        with contextlib.suppress(ResultsError):  # the other error is the one to tell
            record()
        raise
    finally:
        run.end()
    record()


@contextlib.contextmanager
def _telling_how_to_go_on(output: Path, command: str) -> Iterator[None]:
    """Say how to continue where the sweep was stopped, or Ray cannot be started again."""
    try:
        yield
    except Unfinished as error:
        raise Unfinished(f"{error}; {_again(output, command)}") from error
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; {_again(output, command)}") from None


def _finished(result: TrialResult, sweep: Sweep, store: Store) -> bool:
    """Return whether a stored trial need not run again. It must if a checkpoint to keep is missing, unless it
    diverged."""
    if not result.status.final or not sweep.start.keep or result.status is TrialStatus.DIVERGED:
        return result.status.final
    cell, config = Cell.of(result.config), result.config
    if cell.optimizer not in sweep.choices or sweep.trial_at(cell, config.lr) != config:
        return True  # a trial that this sweep does not ask for
    return all(kept_path(store.kept_folder(config.fingerprint), examples).exists() for examples in sweep.start.keep)


@contextlib.contextmanager
def _continuing(output: Path, command: str) -> Iterator[None]:
    """Say at the end of an error with the folder, such as one that has become read-only, how to continue."""
    try:
        yield
    except ResultsError as error:
        raise ResultsError(f"{error}; {_again(output, command)}") from None


def _again(output: Path, command: str) -> str:
    kept = f"every finished trial is kept in {output}; to continue" if (output / MANIFEST).exists() else "to start over"
    return f"{kept}: {command or 'the same call'}"
