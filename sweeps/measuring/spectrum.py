"""``cbs theory spectrum`` as a function: the curvature of a sweep's model, before training and at the target.

Trained models are not stored, so the trials that lead to the target are trained again from their records. A record may
name code of whoever made it, ``package.module:function``; such code is run only if the user names it again.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cbs.compute import seeding
from cbs.compute.device import pick
from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import Choice
from cbs.spectrum.measure import Effort, curvature_kind, measure
from cbs.spectrum.record import START, TARGET, Spectrum, SpectrumSample
from cbs.training.averaging.weights import averaged_weights
from cbs.training.loop import TrainingLoop
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store, find_sweeps
from sweeps.spec.workload import built

POINTS = (START, TARGET)


@dataclass(frozen=True, kw_only=True)
class SpectrumTrials:
    """The trials whose spectrum is measured.

    Attributes:
        store: store of the sweep.
        configs: one trial per seed; trials that reached the target, if there are any.
        leads: whether these trials reached the target.
        data_hash: hash of the data they were trained on.
    """

    store: Store
    configs: tuple[TrialConfig, ...]
    leads: bool
    data_hash: str | None


def runs_of(path: Path, *, optimizer: str | None, workload: str | None) -> SpectrumTrials:
    """Return the trials of a sweep whose spectrum is measured.

    Among the optimizer's trials that reached the target, these are the ones at the middle batch size and at the
    learning rate with the most seeds and, among equals, the fewest steps on average.

    Args:
        path: folder of one sweep.
        optimizer: a name, possibly with options as :func:`cbs.registry.choices.parse_choice` reads them; ``None`` for
            the only or the alphabetically first one.
        workload: name of the workload; needed if the records name custom code.

    Raises:
        ConfigError: if there are several sweeps or workloads, no such optimizer, or custom code that was not named.
        ResultsError: if the folder cannot be read, holds no trial, or was imported.
    """
    stores = find_sweeps(path)
    if len(stores) > 1:
        raise ConfigError(f"{path} holds {len(stores)} sweeps; give the folder of one: {stores[0].root}")
    (store,) = stores
    if store.manifest().get("imported"):
        raise ResultsError(f"{path} was imported: its model and data are not here, so there is no spectrum to measure")
    trials = list(store.results())
    if not trials:
        raise ResultsError(f"{path} holds no trial yet; run 'cbs sweep' first")
    chosen = _of_optimizer(trials, optimizer, path)
    if len({str(trial.config.workload) for trial in chosen}) > 1:
        raise ConfigError(f"{path} holds several workloads; give the folder of one")
    reached = [trial for trial in chosen if trial.status is TrialStatus.REACHED]
    results = _middle(reached) if reached else _one_per_seed(chosen)
    _check_named("workload", results[0].config.workload.name, workload, path)
    _check_named("optimizer", results[0].config.optimizer.name, optimizer, path)
    info = next((trial.workload for trial in chosen if trial.workload is not None), None)
    return SpectrumTrials(
        store=store,
        configs=tuple(trial.config for trial in results),
        leads=bool(reached),
        data_hash=info.data_hash if info else None,
    )


def _of_optimizer(trials: Sequence[TrialResult], optimizer: str | None, path: Path) -> list[TrialResult]:
    names = sorted({str(trial.config.optimizer) for trial in trials})
    wanted = [name for name in names if optimizer in (None, name, name.partition("(")[0])]
    if not wanted:
        raise ConfigError(f"{path} has no optimizer {optimizer!r}; it has {', '.join(names)}")
    return [trial for trial in trials if str(trial.config.optimizer) == wanted[0]]


def _check_named(kind: str, name: str, given: str | None, path: Path) -> None:
    """Check that the user has named custom code that a record names; opening a folder must not run it."""
    flag = "--optim" if kind == "optimizer" else "--workload"
    if ":" in name and (given or "").partition("(")[0] != name:
        raise ConfigError(f"the {kind} of {path} is custom code, {name!r}; to allow it to run, add {flag} {name}")
    if kind == "workload" and given is not None and given != name:
        raise ConfigError(f"--workload {given}: the workload of {path} is {name!r}")


def _middle(reached: Sequence[TrialResult]) -> list[TrialResult]:
    sizes = sorted({trial.config.batch_size for trial in reached})
    centre = sum(map(math.log, sizes)) / len(sizes)
    middle = min(sizes, key=lambda size: abs(math.log(size) - centre))
    by_lr: dict[float, list[TrialResult]] = {}
    for trial in reached:
        if trial.config.batch_size == middle:
            by_lr.setdefault(trial.config.lr, []).append(trial)
    return _one_per_seed(min(by_lr.values(), key=lambda found: (-len(found), np.mean([_steps(t) for t in found]))))


def _steps(trial: TrialResult) -> float:
    assert trial.steps_to_target is not None
    return trial.steps_to_target


def _one_per_seed(trials: Sequence[TrialResult]) -> list[TrialResult]:
    results: dict[int, TrialResult] = {}
    for trial in trials:
        results.setdefault(trial.config.seed, trial)
    return [results[seed] for seed in sorted(results)]


def measure_spectrum(
    path: Path,
    *,
    optimizer: str | None = None,
    workload: str | None = None,
    points: Sequence[str] = POINTS,
    replicates: int = 4,
    effort: Effort | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Spectrum:
    """Measure the spectrum of a sweep's model.

    Args:
        path, optimizer, workload: see :func:`runs_of`.
        points: points to measure at: ``start``, before training, and ``target``, where training reached it.
        replicates: number of measurements at each point, each with its own batches and random signs; the sweep's seeds
            take turns.
        effort: cost of a measurement; ``None`` for the defaults of :class:`~cbs.spectrum.measure.Effort`.
        progress: called with what has just been measured, ``replicates * effort.vectors`` times at each point.

    Raises:
        ConfigError: if a value is out of its domain, the workload cannot be built, or a repeated trial does not reach
            the target.
        ResultsError: if there are no usable trials.
    """
    effort = effort or Effort()
    if replicates < 1:
        raise ConfigError(f"replicates must be at least 1, got {replicates}")
    if unknown := [point for point in points if point not in POINTS]:
        raise ConfigError(f"a spectrum is measured at {' or '.join(POINTS)}, not at {unknown[0]!r}")
    runs = runs_of(Path(path), optimizer=optimizer, workload=workload)
    if TARGET in points and not runs.leads:
        raise ConfigError(f"no trial of {path} reached the target; measure at the start alone, with --at {START}")
    samples: list[SpectrumSample] = []
    for point in points:
        for index, config in enumerate(runs.configs[:replicates]):
            mine = list(range(index, replicates, len(runs.configs)))
            samples += _at(point, config, runs, mine, effort, progress)
    order = {point: place for place, point in enumerate(points)}
    samples.sort(key=lambda sample: (order[sample.point], sample.replicate))
    loop = _loop(runs.configs[0], runs)
    return Spectrum(
        curvature=curvature_kind(loop, effort),
        nodes=effort.nodes,
        parameters=sum(parameter.numel() for parameter in loop.model.parameters() if parameter.requires_grad),
        trial=runs.configs[0].trial_id if TARGET in points else "",
        metric=loop.workload.metric,
        direction=loop.workload.direction,
        workload={"name": runs.configs[0].workload.name, "options": runs.configs[0].workload.options},
        samples=tuple(samples),
    )


def _at(
    point: str,
    config: TrialConfig,
    runs: SpectrumTrials,
    replicates: Sequence[int],
    effort: Effort,
    progress: Callable[[str], None],
) -> Iterator[SpectrumSample]:
    """Yield every replicate of one run, which is trained once."""
    loop = _loop(config, runs)
    start: list[Tensor] = [p.detach().clone() for p in loop.model.parameters() if p.requires_grad]
    if point == TARGET:
        with seeding.seeded(config.seed, "training"):
            status, message = loop.run(None)
        if status is not TrialStatus.REACHED:
            raise ConfigError(f"trial {config.trial_id} does not reach its target again here ({message or status})")
    else:
        loop.evaluate(step=0, lr=0.0, losses=np.empty(0))
    loop.config = dataclasses.replace(config, precision="float32")
    with averaged_weights(loop.optimizer, loop.average):
        for replicate in replicates:
            progress_here = functools.partial(progress, f"{point}, replicate {replicate + 1}")
            yield measure(loop, start, effort, point=point, replicate=replicate, progress=progress_here)


def _loop(config: TrialConfig, runs: SpectrumTrials) -> TrainingLoop:
    if config.parent is not None:
        raise ConfigError(f"trial {config.trial_id} starts from a checkpoint; such trials cannot be trained again here")
    config = dataclasses.replace(config, probe=None, diagnostics=(), compile=False)
    workload = built(Choice(name=config.workload.name, options=config.workload.options))
    if runs.data_hash is not None and workload.data_hash != runs.data_hash:
        raise ConfigError(
            f"{runs.store.root} holds trials on different data (hash {runs.data_hash}, now {workload.data_hash}; the "
            "embedded text differs between Python versions)"
        )
    return TrainingLoop(config, workload, pick(config.device, config.precision))


def summary(spectrum: Spectrum) -> list[dict[str, Any]]:
    """Return one row per point with mean and standard error of every quantity over the replicates.

    The standard error is ``None`` if there is one replicate only.
    """
    rows = []
    for point in spectrum.points:
        samples = spectrum.at(point)
        rows_of_samples = [_quantities(sample) for sample in samples]
        quantities = {}
        for name in rows_of_samples[0]:
            values = np.array([each[name] for each in rows_of_samples])
            error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
            quantities[name] = {"mean": float(values.mean()), "error": error}
        rows.append({
            "point": point,
            "step": max(sample.step for sample in samples),
            "value": float(np.mean([sample.value for sample in samples])),
            "replicates": len(samples),
            "quantities": quantities,
        })  # fmt: skip
    return rows


def _quantities(sample: SpectrumSample) -> dict[str, float]:
    (h, noise), (along, gradient) = sample.of("noise"), sample.of("gradient")
    return {
        "largest_curvature": float(max(h.max(), along.max())),
        "least_curvature": float(min(h.min(), along.min())),
        "grad_sq_norm": float(gradient.sum()),
        "noise_trace": float(noise.sum()),
    }
