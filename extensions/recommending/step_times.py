"""Measure the seconds per training step on this machine, in a short run of a sweep's own trials.

Only the training step is timed: no validation, no noise-scale probe, no diagnostics.
"""

import csv
import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from analysis.read.throughput import SPREAD, StepTime, of_logs
from cbs.compute import seeding
from cbs.compute.device import pick
from cbs.errors import CbsError, ConfigError, ResultsError, out_of_memory, reason
from cbs.files import atomic_file
from cbs.registry import only_code
from cbs.registry.choices import labels
from cbs.training.loop import TrainingLoop
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import find_sweeps
from cbs.trial.trial_files import read_record
from cbs.workloads import Workload
from sweeps.launching.launch import resolve
from sweeps.recipes import RECIPES
from sweeps.running import child
from sweeps.running.child import Channel, Died, Failed
from sweeps.running.patience import LEAST_SECONDS, MARGIN
from sweeps.search.trial_table import middle
from sweeps.spec.axes import Cell
from sweeps.spec.workload import built

# Number of rounds in which all combinations are timed in turn, a block of steps each, so that a passing load on the
# machine does not affect only one optimizer or batch size.
ROUNDS = 5
SLOW_ROUNDS = 3  # Number of rounds if a step takes longer than a block should
_MOST_STEPS = 1000  # Most steps of a block; where they fill less than its time, more of them would hardly tell more


Report = Callable[[StepTime], None]
"""Called after every measurement with the current estimate for its optimizer and batch size."""


def examples_of(source: str) -> tuple[list[TrialConfig], list[int]]:
    """Return one trial configuration per optimizer of a folder of results, or of a recipe, and all batch sizes there.

    The configuration is that of a trial that reached its target, if there is one.

    Raises:
        ConfigError: if there is neither a folder nor a recipe of this name, or the folder holds several workloads.
        ResultsError: if the folder cannot be read, or holds no trial.
    """
    if Path(source).exists():
        return _of_results(Path(source))
    if source not in RECIPES:
        raise ConfigError(f"{source!r} is neither a folder of results nor a recipe ({', '.join(RECIPES.names())})")
    sweep = resolve(RECIPES.make(source))
    cells = [Cell(optimizer, sweep.axes.batch_sizes[0], sweep.axes.seeds[0]) for optimizer in sweep.choices]
    return [sweep.trial_at(cell, middle(sweep.lr_grid(cell.optimizer))) for cell in cells], list(sweep.axes.batch_sizes)


def measured_apart(
    source: str,
    batch_sizes: Sequence[int] | None = None,
    *,
    seconds: float = 1.0,
    code: Sequence[str] = (),
    report: Report | None = None,
) -> list[StepTime]:
    """Run :func:`measure_throughput` on :func:`examples_of` a source, in a child process.

    Args:
        source: a folder of results, or the name of a recipe.
        batch_sizes: examples per step; ``None`` for the batch sizes of the source.
        seconds: as for :func:`measure_throughput`.
        code: custom code ``package.module:name`` that results in a folder may use; no other custom code is imported.
        report: as for :func:`measure_throughput`.

    Raises:
        CbsError: as these functions raise it, or if the process dies or hangs.
    """
    patience = LEAST_SECONDS + MARGIN * seconds
    with child.Child() as own:
        try:
            return own.call(
                "extensions.recommending.step_times:serve", source, batch_sizes, seconds, tuple(code), str(Path.cwd()),
                heard=report or (lambda timing: None), silence=patience,
            )  # fmt: skip
        except (Died, Failed) as error:
            raise ConfigError(f"the steps of {source} cannot be timed: {error}") from None


def serve(
    channel: Channel, source: str, batch_sizes: Sequence[int] | None, seconds: float, code: Sequence[str], path: str
) -> list[StepTime]:
    """Measure in the child process; see :func:`measured_apart`."""
    sys.path.insert(0, path)
    # A recipe is part of this installation; a folder may come from anybody.
    with only_code(code if Path(source).exists() else None):
        configs, sizes = examples_of(source)
        return measure_throughput(configs, batch_sizes or sizes, seconds=seconds, report=channel.say)


def _of_results(path: Path) -> tuple[list[TrialConfig], list[int]]:
    by_optimizer: dict[str, tuple[bool, TrialConfig]] = {}
    batch_sizes: set[int] = set()
    for store in find_sweeps(path):
        for trial_id in store.trial_ids():
            _, summary = read_record(store.trials / trial_id / "record.parquet")
            config, reached = TrialConfig.from_dict(summary["config"]), summary["status"] == TrialStatus.REACHED
            batch_sizes.add(config.batch_size)
            known = by_optimizer.get(str(config.optimizer))
            if known is not None and known[1].workload != config.workload:
                raise ConfigError(f"{path} holds several workloads; give the folder of one sweep")
            if known is None or reached > known[0]:
                by_optimizer[str(config.optimizer)] = reached, config
    if not by_optimizer:
        raise ResultsError(f"{path} holds no trial yet; run 'cbs sweep' first")
    return [config for _, config in by_optimizer.values()], sorted(batch_sizes)


def measure_throughput(
    configs: Sequence[TrialConfig], batch_sizes: Sequence[int], *, seconds: float = 1.0, report: Report | None = None
) -> list[StepTime]:
    """Measure the seconds per step of every trial configuration at every batch size, in this process and on its device.

    In each of :data:`ROUNDS` rounds every combination is built, takes two warm-up steps, and is then timed for
    ``seconds / ROUNDS``, including the wait for the device. Once a batch does not fit into memory, larger ones are not
    tried; a step of such a batch takes infinite seconds.

    Args:
        configs: as returned by :func:`examples_of`; their batch size and budget are ignored.
        batch_sizes: examples per step.
        seconds: seconds to spend on each combination.
        report: see :data:`Report`.

    Raises:
        ConfigError: if a value is out of its domain, or a step fails for another reason than memory.
    """
    if not seconds > 0:
        raise ConfigError(f"the seconds per batch size must be above 0, got {seconds:g}")
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigError("batch sizes must be whole numbers of at least 1")
    took: dict[tuple[int, int], list[float] | None] = {
        (index, size): [] for index in range(len(configs)) for size in sorted(set(batch_sizes))
    }
    names = labels([config.optimizer for config in configs])

    def timing(index: int, size: int) -> StepTime:
        times = took[index, size]
        if times is None:
            return StepTime(optimizer=names[index], batch_size=size, seconds=math.inf)
        middle, interval = of_logs(np.log(times))
        return StepTime(
            optimizer=names[index], batch_size=size, seconds=middle, interval=interval, repetitions=len(times)
        )

    for done in range(ROUNDS):
        for (index, size), times in took.items():
            if times is None or (done >= SLOW_ROUNDS and times[0] > seconds / ROUNDS):
                continue
            full = any(index == other and smaller < size and took[other, smaller] is None for other, smaller in took)
            once = None if full else _seconds_per_step(configs[index], size, seconds / ROUNDS)
            took[index, size] = None if once is None else [*times, once]
            if report is not None:
                report(timing(index, size))
    return [timing(index, size) for index, size in took]


def _seconds_per_step(config: TrialConfig, batch_size: int, seconds: float) -> float | None:
    config = dataclasses.replace(config, batch_size=batch_size, probe=None, diagnostics=())
    try:
        return _timed(config, built(config.workload), seconds)
    except CbsError:
        raise
    except Exception as error:
        if out_of_memory(error):
            return None
        where = f"workload {config.workload.name!r}, optimizer {config.optimizer.name!r}, batch size {batch_size}"
        raise ConfigError(f"{where}: the training step fails: {reason(error)}") from error


def _timed(config: TrialConfig, workload: Workload, seconds: float) -> float:
    with seeding.seeded(config.seed, "training"):
        config = dataclasses.replace(config, batch_schedule=None)
        loop = TrainingLoop(config, workload, pick(config.device, config.precision))
        _block(loop, 0, 1)
        steps = min(_MOST_STEPS, max(1, round(seconds / _block(loop, 1, 1))))
        return _block(loop, 2, steps) / steps


def _block(loop: TrainingLoop, done: int, steps: int) -> float:
    """Return the seconds of a number of steps; reading the losses waits for the device."""
    started = time.perf_counter()
    for step in range(done + 1, done + steps + 1):
        loop.train_step(step)
    loop.columns.flush()
    return time.perf_counter() - started


def write_step_times(rows: Iterable[StepTime], path: str | os.PathLike[str]) -> None:
    """Write measurements as CSV, atomically; prices are left out, because a measurement does not know them.

    Raises:
        ResultsError: if the file cannot be written.
    """
    with (
        atomic_file(Path(path), remedy="; choose another file") as draft,
        open(draft, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["optimizer", "batch_size", "devices", "seconds_per_step", *SPREAD])
        for row in rows:
            spread = ("", "", "") if row.interval is None else (*map(repr, row.interval), row.repetitions)
            writer.writerow([row.optimizer, row.batch_size, row.devices, repr(row.seconds), *spread])
