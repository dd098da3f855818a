"""From results, or from the studies of one optimizer, to answers: draws, definitions, verdict, and per-step columns."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.along_training import ALONG_TRAINING
from analysis.estimate.definitions import EXTRAPOLATED, HEADLINE, CurveSample, Definition, chosen
from analysis.estimate.definitions.least_product import within
from analysis.estimate.diagnosis import Doubts, doubts_of, judge, not_reached
from analysis.estimate.draws import Draws
from analysis.estimate.noise import Recorded, measure
from analysis.estimate.result import Answer, BatchDoubling, CriticalBatchSize, Hyperbola
from analysis.estimate.studies import Study, best_values, point, studies, within_reach
from analysis.estimate.study_draws import Drawn, draw_studies
from analysis.quantities import Array, Quantity, interval, percentiles
from analysis.read.groups import Group
from analysis.read.results import Results
from cbs.errors import ConfigError, ResultsError
from cbs.trial.record import CLIPPED
from cbs.trial.store import finite_or_none
from cbs.trial.target import Target
from cbs.trial.trial_files import read_steps

_ROUNDING = 1e-6  # Relative; a doubling may end at the largest batch size

_MOST = 600.0  # Largest logarithm of a ratio of steps


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Input for the estimate of one optimizer's curve at one target.

    Attributes:
        studies: studies in order of increasing batch size.
        not_reached: advice in case no batch size reached the target.
        easier: an easier target that was reached at every batch size; ``None`` if there is none.
    """

    target: Target
    studies: Sequence[Study]
    not_reached: str = ""
    easier: Target | None = None


@dataclass(frozen=True, kw_only=True)
class TableTarget(Target):
    """Target of a table, which may not give its value (``known`` is then false)."""

    known: bool = True

    def __str__(self) -> str:
        return f"target {self.value:g}" if self.known else "the target"


def known_value(target: Target) -> float | None:
    """Return the target's value of the metric; ``None`` if it comes from a table that does not give it."""
    return target.value if getattr(target, "known", True) else None


def estimates(group: Group, readings: Sequence[Reading], config: AnalysisConfig) -> Iterator[Answer]:
    """Yield the answers at every target of one optimizer, without results from the per-step columns.

    All targets use the same random seed, so that they can be compared draw by draw.
    """
    found = [draw_studies(reading.studies, config, group.optimizer) for reading in readings]
    samples = [
        CurveSample(each.draws, each.hyperbola.law, known_value(reading.target))
        for each, reading in zip(found, readings, strict=True)
        if each is not None
    ]
    wanted, at = chosen(config), -1
    for reading, drawn in zip(readings, found, strict=True):
        at += drawn is not None
        definitions = {
            name: CriticalBatchSize(
                definition=name,
                options=dataclasses.asdict(definition),  # type: ignore[call-overload]
                **({} if drawn is None else _critical(definition, samples, at, config.confidence)),
            )
            for name, definition in wanted.items()
        }
        believed = itertools.repeat(False) if drawn is None else drawn.believed
        points = tuple(
            replace(summary, at_grid_edge=False) if known else summary
            for summary, known in zip(map(point, reading.studies), believed, strict=False)
        )
        beyond = config.definition if definitions[config.definition].remark.startswith(EXTRAPOLATED) else ""
        doubts = Doubts() if drawn is None else doubts_of(drawn, definitions[HEADLINE].interval, beyond)
        verdict, advice = judge(points, doubts, reading.not_reached, reading.easier, seeded=group.seeded)
        yield Answer(
            group=group,
            target=reading.target,
            config=config,
            studies=tuple(reading.studies),
            points=points,
            draws=None if drawn is None else drawn.draws,
            definitions=definitions,
            verdict=verdict,
            advice=advice,
            easier=reading.easier,
            doubts=doubts,
            **({} if drawn is None else _of_curve(drawn, config.confidence)),
        )


def _of_curve(drawn: Drawn, confidence: float) -> dict[str, Any]:
    draws, law = drawn.draws, drawn.draws.law

    def quantity(values: Array) -> Quantity:
        return Quantity(float(np.median(values)), interval(values, confidence))

    one = drawn.hyperbola.law
    return {
        "min_steps": quantity(law.min_steps),
        "exponent": quantity(law.exponent),
        "hyperbola": Hyperbola(
            critical_batch_size=quantity(one.critical),
            min_steps=quantity(one.min_steps),
            min_examples=quantity(one.min_examples),
            curve=one,
        ),
        "near": within(draws),
        "doublings": doublings(draws, confidence),
    }


def doublings(draws: Draws, confidence: float) -> tuple[BatchDoubling, ...]:
    """Return what doubling buys from every measured batch size whose double is not above the largest one."""
    sizes = draws.batch_sizes[2 * draws.batch_sizes <= draws.batch_sizes[-1] * (1 + _ROUNDING)]
    if not len(sizes):
        return ()
    rise = draws.drawn(2 * sizes) - draws.drawn(sizes)
    expected = draws.estimate(2 * sizes) - draws.estimate(sizes)
    found = []
    for size, mean, rows in zip(sizes, expected, rise.T, strict=True):
        # steps that differ beyond all numbers, as where few runs reached the target, stay numbers
        mean, low, high = np.clip([mean, *percentiles(rows, confidence)], -_MOST, _MOST).tolist()
        found.append(
            BatchDoubling(
                batch_size=size,
                steps_saved=Quantity(-math.expm1(mean), (-math.expm1(high), -math.expm1(low))),
                examples_added=Quantity(2 * math.exp(mean) - 1, (2 * math.exp(low) - 1, 2 * math.exp(high) - 1)),
            )
        )
    return tuple(found)


def _critical(definition: Definition, samples: Sequence[CurveSample], at: int, confidence: float) -> dict[str, Any]:
    values = definition(samples, at)
    # where half of the draws have no value, nor has the definition
    value, ends = float(np.quantile(values, 0.5, method="nearest")), interval(values, confidence)
    sizes = samples[at].batch_sizes
    if definition.on_grid:
        ends = ends[0] if ends[0] != sizes[0] else None, ends[1] if ends[1] != sizes[-1] else None
    if value == 0.0:
        ends = None, ends[1] or float(sizes[0])
    elif value == math.inf:
        ends = ends[0] or float(sizes[-1]), None
    return {
        "value": finite_or_none(value) or None,
        "interval": ends,
        "remark": definition.remark(samples, at, value),
        "drawn": values,
    }


def answers(
    results: Results, config: AnalysisConfig, *, targets: Sequence[float | Target] | None = None, noise: bool = True
) -> list[Answer]:
    """Return the answers of every group at every target, in this order.

    Args:
        results, config, targets: as for :func:`analysis.analyze`.
        noise: whether to read the per-step columns (noise scale, diagnostics), which takes most of the time.

    Raises:
        ConfigError: if a target cannot be used.
        ResultsError: if the per-step columns of a trial at the best learning rate cannot be read.
    """
    chosen(config)
    curve, count = [results.evaluations[name].to_numpy() for name in ("trial", "step", "value")], len(results.trials)
    steps = functools.cache(lambda target: target.crossings(*curve, count))
    apart = functools.cache(lambda target: target.apart(*curve, count))
    best = functools.cache(lambda direction: best_values(results.evaluations, count, direction))
    curves = []
    for index, group in enumerate(results.groups):
        if results.ends_alone(index):
            raise ResultsError(
                f"sweep {group.sweep!r} has one evaluation per run, so no steps to a target are known: cbs budget "
                f"{group.folder} compares the batch sizes, and cbs lr {group.folder} the learning rates"
            )
        direction, readings = group.target.direction, []
        rows = results.of_group(index)
        reachable = within_reach(rows, best(direction), direction)
        for target in _targets(group, targets):
            if (steps(target)[rows.index] == 0).any():
                several = len({each.sweep for each in results.groups}) > 1
                raise ConfigError(
                    f"target {target} is reached before the first step in sweep {group.sweep!r}; choose a harder target"
                    + (", or give the folder of the sweep that is meant" if several else "")
                )
            easier = None if reachable is None else replace(target, value=reachable)
            own = group.target if group.stops_at_target and group.target.metric == target.metric else None
            if easier and own and own.reached(easier.value):
                easier = own  # where trials stop, values past it are those of lucky ones
            readings.append(
                Reading(
                    target=target,
                    studies=list(studies(group, rows, target, steps(target), apart(target), curve)),
                    not_reached=not_reached(group, target, easier),
                    easier=easier,
                )
            )
        curves.append((group, readings))
    answers_of_group: list[Answer] = []
    for group, readings in curves:
        made = estimates(group, readings, config)
        read = functools.cache(lambda row: read_steps(Path(results.trials.at[row, "folder"]) / "steps.parquet"))
        answers_of_group += [_with_columns(answer, read) for answer in made] if noise else made
    return answers_of_group


def _with_columns(answer: Answer, read: Callable[[int], Recorded]) -> Answer:
    """Add results from the per-step columns; ``read`` returns the columns of a row of the trial table."""
    noise, along, clipped = {}, {name: dict[int, pd.DataFrame]() for name in ALONG_TRAINING}, {}
    for entry in answer.points:
        if entry.reached:
            recorded = [read(row) for row in entry.trials]
            noise[entry.batch_size] = measure(
                recorded, entry.steps_per_seed, entry.batch_size, confidence=answer.confidence
            )
            columns = [each for each, _ in recorded]
            for name, tables in along.items():
                curves = ALONG_TRAINING[name].curves(columns, entry.steps_per_seed, entry.batch_size)
                tables[entry.batch_size] = curves
            pairs = zip(recorded, entry.steps_per_seed, strict=True)
            if shares := [c[CLIPPED][: math.ceil(steps)].mean() for (c, _), steps in pairs if CLIPPED in c]:
                clipped[entry.batch_size] = float(np.mean(shares))
    return replace(answer, noise=noise, along=along, clipped=clipped)


def _targets(group: Group, wanted: Sequence[float | Target] | None) -> list[Target]:
    own = group.target
    if not wanted and group.beside:
        raise ConfigError(f"sweep {group.sweep!r} has no target of {own.metric}: give one with --target")
    if not wanted:
        return [own]
    targets = []
    for entry in wanted:
        target = entry if isinstance(entry, Target) else replace(own, value=float(entry))
        if (target.metric, target.direction) != (own.metric, own.direction):
            about = f"whose metric is {own.metric}" if group.beside else f"whose target is {own}"
            raise ConfigError(f"target {target} does not fit sweep {group.sweep!r}, {about}")
        if target not in targets:
            targets.append(target)
    return targets
