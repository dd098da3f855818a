"""How the critical batch size scales with data, model size, loss and compute, and on what it depends, all else equal.

The entry point is ``scale(paths)``; see :mod:`analysis.estimate.learning_rate_law` for the fits.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.formatting import plural
from analysis.present.findings import Findings
from analysis.present.sentences import home
from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.trial.target import Target
from extensions.scale.fits import NOTHING, ScalingLaw, comparisons, laws, options, varying
from extensions.scale.points import AXES, ScalingPoint, at_data, in_tokens, points_of, unlike, why_left_out

# Ratio of the spread of ln S(B_crit) to that of ln B_crit below which an exponent against data counted at B_crit is 1
# within a quarter, whatever the data.
_OWN = 0.25

_ONE_LAW = "; a law holds for one workload and optimizer: models that share a law need the same workload name"


@dataclass(frozen=True, kw_only=True)
class Scaling(Findings):
    """Result of :func:`scale`.

    Attributes:
        points: the critical batch sizes; those interpolated at fixed data come last.
        laws: laws over all points of an optimizer.
        comparisons: sets with all else equal, and pools of such sets.
        data: what data and compute refer to, in words.
        then: what to run next: the command that says what the first point that was left out lacks, else the report.
    """

    points: tuple[ScalingPoint, ...]
    laws: tuple[ScalingLaw, ...]
    comparisons: tuple[ScalingLaw, ...]
    data: str
    then: tuple[str, ...] = field(default=(), repr=False)


def scale(
    paths: Sequence[str | os.PathLike[str]],
    config: AnalysisConfig = DEFAULT,
    *,
    against: Sequence[str] | None = None,
    vary: Sequence[str] | None = None,
    hold_data: Sequence[float] | None = None,
    at: Sequence[float] | None = None,
    data_at_batch: float | None = None,
    targets: Sequence[float | Target] | None = None,
) -> Scaling:
    """Fit laws of the critical batch size over many models and targets.

    Args:
        paths: sweeps, or folders of sweeps.
        against: names in :data:`extensions.scale.points.AXES`; ``None`` for all that vary.
        vary: axes or workload options along which to compare, all else equal; ``None`` for every option that varies.
        hold_data: amounts of data at which ``vary`` is also compared, with the loss free; in tokens if an example has
            them.
        at: values at which to predict the critical batch size; requires a single axis.
        data_at_batch: batch size whose examples to target are the data; ``None`` for the critical batch size.
        targets: as for :func:`analysis.analyze`.

    Raises:
        ConfigError: if an argument is out of its domain.
        ResultsError: if there is nothing to fit.
    """
    positive = [*(at or ()), *(hold_data or ()), *(() if data_at_batch is None else (data_at_batch,))]
    _check(paths, against, at, positive)
    results = load(*paths)
    answers_of_all = answers(results, config, targets=targets, noise=False)
    measured, left_out = points_of(answers_of_all, data_at_batch)
    unknown = [answer for answer in answers_of_all if why_left_out(answer)]
    if not measured:
        reasons = "; ".join(line.removeprefix("left out ") for line in left_out[:3])
        raise ResultsError(f"no critical batch size with a closed interval: {reasons}; see cbs analyze")
    notes = [
        *results.notes,
        *(["examples differ in length, so batch sizes are in tokens"] if in_tokens(answers_of_all) else []),
    ]
    notes += [*unlike(answers_of_all), *left_out]
    points = list(measured)
    fitted = [
        law
        for axis in dict.fromkeys(against or varying(points, AXES))
        for law in laws(points, axis, config, at=at or ())
    ]
    for axis in against or ():
        own = [law for law in fitted if law.axis == axis]
        if all(law.fit is None and "does not vary" in law.remark for law in own):
            why = "; ".join(f"{law.workload}, {law.optimizer}: {law.remark}" for law in own)
            raise ResultsError(f"no law against {axis}: {why}{_ONE_LAW if len(own) > 1 else ''}")
    notes += [] if data_at_batch else [line for law in fitted for line in _against_itself(law, measured)]
    names = list(dict.fromkeys(vary or varying(points, options(points))))
    # if a single option varies, the parameters follow from it
    names += varying(points, ["parameters"]) if not vary and len(names) != 1 else []
    compared = [law for name in names for law in comparisons(points, name, config)]
    for data in hold_data or ():
        interpolated, missing = at_data(measured, data, config.confidence)
        notes += missing
        first = len(points)
        points += interpolated
        compared += [law for name in names for law in comparisons(points, name, config, first=first)]
    if vary:
        notes += [f"nothing to compare along {name}" for name in names if not any(law.axis == name for law in compared)]
    if not fitted and not compared:
        number, families = plural(len(points), "critical batch size"), {point.family for point in points}
        advice = _ONE_LAW if len(families) > 1 else "; give several models or targets"
        raise ResultsError(f"{number}, and nothing varies between those of one workload and optimizer{advice}")
    size = "the critical batch size" if data_at_batch is None else f"a batch size of {data_at_batch:g}"
    return Scaling(
        points=tuple(points),
        laws=tuple(fitted),
        comparisons=tuple(compared),
        config=config,
        data=f"those that {size} takes to the target",
        then=_then(paths, unknown),
        notes=tuple(notes),
    )


def _then(paths: Sequence[str | os.PathLike[str]], unknown: Sequence[Answer]) -> tuple[str, ...]:
    if unknown:
        return (f"cbs analyze {home(unknown[:1])} --target {unknown[0].target.value:g}",)
    return (f"cbs report {shlex.quote(os.fspath(paths[0]))}",) if len(paths) == 1 else ()


def _against_itself(law: ScalingLaw, points: Sequence[ScalingPoint]) -> list[str]:
    """Warn if the data are a multiple of B_crit itself and therefore say nothing about how it grows with them, unless
    nothing is said anyway."""
    if law.axis not in ("data", "compute") or law.fit is None or law.says == NOTHING:
        return []
    sizes = np.log([points[index].critical_batch_size for index in law.points])
    if np.std(np.log(law.x) - sizes) > _OWN * np.std(sizes):
        return []
    return [
        f"{law.workload}, {law.optimizer}: {law.axis}, counted at B_crit, is proportional to it, as the steps there "
        "hardly differ between the points: an exponent near 1 means nothing; count it at one batch size, "
        "--data-at-batch B"
    ]


def _check(
    paths: Sequence[Any], against: Sequence[str] | None, at: Sequence[float] | None, positive: Sequence[float]
) -> None:
    if not paths:
        raise ConfigError("give at least one results folder")
    for axis in against or ():
        if axis not in AXES:
            raise ConfigError(
                f"--against {axis}: known are {', '.join(AXES)}; for an option of the workload use --vary"
            )
    if at and len(set(against or ())) != 1:
        raise ConfigError("--at needs exactly one --against, whose unit it is in")
    for value in positive:
        if not 0 < value < float("inf"):
            raise ConfigError(f"--at, --hold-data and --data-at-batch take positive numbers, got {value:g}")
