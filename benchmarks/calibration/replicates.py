"""One replicate: a sweep of its own seeds, trained and stored, and what ``cbs analyze`` says of the folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analysis.config import AnalysisConfig
from analysis.estimate.result import Answer
from analysis.quantities import UNKNOWN
from analysis.questions.analyze.critical_batch_sizes import analyze
from benchmarks.calibration.cases import SEEDS, Case
from benchmarks.calibration.truth import Truth, fine_grid
from cbs.training.run import run_trial
from cbs.trial.store import Store
from cbs.workloads import Workload
from cbs.workloads.noisy_quadratic import NoiseStream, NoisyQuadraticWorkload
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.launch import resolve
from sweeps.search.pruning import stops
from sweeps.search.search import Search
from sweeps.spec.axes import Cell
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built

GRIDS = ("fine", "default")
"""Five learning rates a factor 2^(1/4) apart around the best of all, or the search of ``cbs sweep`` as it is."""


def seeds_of(replicate: int) -> tuple[int, ...]:
    """No two replicates share one."""
    return tuple(range(SEEDS * replicate, SEEDS * (replicate + 1)))


def sweeps_of(case: Case, grid: str, truth: Truth, replicate: int) -> list[Sweep]:
    """What is run into one folder: one sweep, or with a fine grid one for each batch size."""
    seeds = seeds_of(replicate)
    if grid == "default":
        return [case.sweep(seeds)]
    return [case.sweep(seeds, batch_sizes=(int(at.batch_size),), lrs=fine_grid(at)) for at in truth.swept]


def train(sweep: Sweep, store: Store, workload: Workload) -> int:
    """Run a sweep in this process, as ``cbs sweep`` does on Ray's; returns the number of its trials.

    The search says which trial is next, and finished ones are bounds of the others; only their order in time differs.
    """
    search = Search(sweep)
    trials = 0
    while (config := search.next()) is not None:
        best = search.best_steps(Cell.of(config))
        result = run_trial(
            config,
            workload=workload,
            monitor=lambda rows, config=config, best=best: stops(  # type: ignore[misc]
                config, rows, best, sweep.prune_factor
            ),
        )
        store.save(result)
        search.add(result)
        trials += 1
    for cell in search.cells():
        for changed in search.settled(cell):
            store.update_record(changed)
    return trials


def replicate(
    case: Case, grid: str, truth: Truth, index: int, folder: Path, workload: SharedStream | None = None
) -> dict[str, Any]:
    """What the chain finds, as plain JSON values.

    Args:
        case: the optimizer.
        grid: one of :data:`GRIDS`.
        truth: whose learning rates a fine grid lies around.
        index: number of the replicate.
        folder: for the trials.
        workload: to share examples with other replicates of the same seeds.
    """
    start, count, store = time.process_time(), 0, Store(folder)
    workload = workload or shared_workload(case)
    sweeps = [resolve(sweep) for sweep in sweeps_of(case, grid, truth, index)]
    store.prepare()
    for sweep in sweeps:
        store.write_manifest(merged_manifest(store, sweep, "python -m benchmarks.calibration"))
        count += train(sweep, store, workload)
    trained = time.process_time()
    (answer,) = analyze(folder, AnalysisConfig(seed=index)).answers
    return {
        "case": case.name,
        "grid": grid,
        "replicate": index,
        "trials": count,
        "seconds": {"training": trained - start, "analysis": time.process_time() - trained},
        **record(answer),
    }


def shared_workload(case: Case) -> SharedStream:
    """Of a case's sweep."""
    workload = built(case.sweep((0,)).trial.workload)
    assert isinstance(workload, NoisyQuadraticWorkload)
    return SharedStream(workload)


def record(answer: Answer) -> dict[str, Any]:
    """Values and intervals of ``B_crit``, ``S_min`` and ``E_min``, which the hyperbola alone has, and the points."""
    hyperbola = answer.hyperbola
    found = {
        "critical": answer.critical,
        "min_steps": answer.min_steps,
        "min_examples": hyperbola.min_examples if hyperbola else UNKNOWN,
    }
    return {
        "estimates": {
            name: {"value": quantity.value, "interval": list(quantity.interval)} for name, quantity in found.items()
        },
        "verdict": str(answer.verdict),
        "points": [
            {
                "batch_size": point.batch_size,
                "steps": list(point.steps_per_seed),
                "best_lr": point.best_lr,
                "at_grid_edge": point.at_grid_edge,
                "lrs": study.lrs.tolist(),
                "table": [[None if value != value else value for value in row] for row in study.steps.tolist()],
            }
            for point, study in zip(answer.points, answer.studies, strict=True)
        ],
    }


KEPT = 160_000  # Examples that are kept of a seed; 0.6 GB at 1000 dimensions
BLOCK = 6_400
"""Drawn at a time, a multiple of the stream's own."""


class SharedStream(NoisyQuadraticWorkload):
    """The workload of ``quadratic``, bit for bit. :meth:`forget` gives the memory back."""

    def __init__(self, quadratic: NoisyQuadraticWorkload) -> None:
        super().__init__(quadratic.curvature, quadratic.noise)
        self._tapes: dict[int, _Tape] = {}

    def training_stream(self, generator: torch.Generator) -> Reader:  # type: ignore[override]
        """That of the seed of ``generator``, from its start."""
        seed = generator.initial_seed()
        if seed not in self._tapes:
            self._tapes[seed] = _Tape(self.noise.sqrt(), generator)
        return Reader(self._tapes[seed])

    def forget(self) -> None:
        """Drop all examples."""
        self._tapes.clear()


class _Tape:
    def __init__(self, scale: Tensor, generator: torch.Generator) -> None:
        self.scale, self.stream = scale, NoiseStream(scale, generator)
        self.examples, self.drawn = scale.new_empty(KEPT, len(scale)), 0
        self.state = torch.empty(0)
        self._generator = generator

    def until(self, count: int) -> None:
        """Draw as far as the tape goes and ``count`` examples need."""
        while self.drawn < min(count, KEPT):
            self.examples[self.drawn : self.drawn + BLOCK] = self.stream.next(BLOCK)
            self.drawn += BLOCK
            self.state = self._generator.get_state()


class Reader:
    """A stream that reads a tape and draws on where it ends."""

    def __init__(self, tape: _Tape) -> None:
        self._tape, self._place = tape, 0
        self._beyond: NoiseStream | None = None

    def next(self, examples: int) -> Tensor:
        """As :meth:`NoiseStream.next`."""
        tape, place = self._tape, self._place
        self._place += examples
        tape.until(self._place)
        kept = tape.examples[place : min(self._place, KEPT)]
        if len(kept) == examples:
            return kept
        if self._beyond is None:
            generator = torch.Generator()
            generator.set_state(tape.state)
            self._beyond = NoiseStream(tape.scale, generator)
        return torch.cat([kept, self._beyond.next(examples - len(kept))])
