"""Predict a sweep from its model's measured spectrum with the noisy quadratic, and compare with the measurement.

The spectrum is that of ``cbs theory spectrum``. The noisy quadratic of Zhang et al. (2019, arXiv:1907.04164) with its
curvature, gradient and noise is trained in closed form to the sweep's target at the sweep's batch sizes, and the
resulting steps are fitted like those of the sweep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.extensions.theory.prediction.mapping import mapped, unlike
from analysis.extensions.theory.prediction.result import Prediction, Predictions
from analysis.extensions.theory.prediction.variations import Task
from analysis.phrases import number
from analysis.read.results import load
from cbs.errors import ConfigError, ResultsError
from cbs.spectrum.record import START, TARGET, SpectrumSample, read
from cbs.trial.store import find_sweeps, read_record

APART = 0.1
"""Relative difference between metric and training loss above which a note is given."""


def predict(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    optimizers: Sequence[str] | None = None,
    targets: Sequence[float] | None = None,
    batch_sizes: Sequence[int] | None = None,
    at: str | None = None,
    floors: Sequence[float] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Predictions:
    """Predict the steps of a sweep and its critical batch size from the spectrum in its folder.

    Args:
        path: folder of one sweep.
        config: configuration of the analysis.
        optimizers: names of the sweep's optimizers; by default all that the quadratic covers.
        targets: values of the sweep's metric; by default its own target.
        batch_sizes: batch sizes; by default those of the sweep.
        at: point whose spectrum is used for the prediction; by default where training reached the target, if that was
            measured. The other point is one of the alternative assumptions.
        floors: assumed floors in addition to the quadratic's own; by default 0 and half the target.
        progress: called with what has just been computed.

    Raises:
        ConfigError: if there is no such optimizer or point, the metric is not a loss, or a value is out of its domain.
        ResultsError: if there are no usable results or no spectrum at ``path``.
    """
    stores = find_sweeps(path)
    if len(stores) > 1:
        raise ConfigError(f"{path} holds {len(stores)} sweeps; give the folder of one: {stores[0].root}")
    spectrum, results = read(stores[0].root), load(path)
    if spectrum.direction != "below":
        raise ConfigError(f"the noisy quadratic predicts a loss, and {spectrum.metric} is better above its target")
    point = at or (TARGET if TARGET in spectrum.points else START)
    if point not in spectrum.points:
        again = f"measure it with 'cbs theory spectrum {path} --at {point}'"
        raise ConfigError(f"no spectrum was measured at {point!r}, only at {', '.join(spectrum.points)}; {again}")
    notes = [*results.notes, *_doubts(spectrum.at(point), spectrum.metric)]
    entries = []
    known = [group.choice.name for group in results.groups]
    if unknown := [name for name in optimizers or () if name not in known]:
        raise ConfigError(f"{path} has no optimizer {unknown[0]!r}; it has {', '.join(dict.fromkeys(known))}")
    for answer in answers(results, config, targets=targets, noise=False):
        choice, label = answer.group.choice, answer.group.optimizer
        if optimizers and choice.name not in optimizers:
            continue
        if answer.group.tuned:
            named = " and ".join(answer.group.tuned)
            notes.append(
                f"{label} is left out: its {named} was tuned at every batch size, and a prediction assumes one value"
            )
            continue
        trial = results.of_group(results.groups.index(answer.group)).iloc[0]
        _, record = read_record(Path(trial["folder"]) / "record.parquet")
        method = mapped(choice, record["config"])
        if isinstance(method, str):
            notes.append(f"{label} is left out: {method}")
            continue
        notes += [f"{label}: {what}" for what in unlike(choice, record["config"])]
        progress(label)
        sizes = tuple(map(float, batch_sizes or [entry.batch_size for entry in answer.points]))
        assumed = [0.0, answer.target.value / 2] if floors is None else floors
        task = Task(method=method, target=answer.target.value, batch_sizes=sizes, config=config)
        main = task.with_interval(spectrum.at(point))
        notes += [f"{label}: {line}" for line in main.left_out]
        entries.append(
            Prediction(
                answer=answer,
                mapped=method,
                batch_sizes=sizes,
                main=main,
                others=(
                    *(task.under(spectrum.at(other)) for other in spectrum.points if other != point),
                    *(task.under(spectrum.at(point), floor) for floor in assumed),
                ),
            )
        )
    if not entries:
        raise ResultsError("; ".join(notes) or f"{path} has no optimizer that the noisy quadratic model covers")
    return Predictions(config=config, spectrum=spectrum, entries=tuple(entries), notes=tuple(dict.fromkeys(notes)))


def _doubts(samples: Sequence[SpectrumSample], metric: str) -> Iterator[str]:
    """Warn if the metric is far from the training loss, to which the quadratic refers, or if there is only one run."""
    if len({sample.seed for sample in samples}) == 1:
        yield "the spectrum is of one run: intervals of predictions hold no difference between runs"
    loss, value = (float(np.mean([getattr(sample, name) for sample in samples])) for name in ("train_loss", "value"))
    if abs(loss - value) > APART * abs(value):
        yield (
            f"the training loss is {number(loss)} where {metric} is {number(value)}: the prediction takes the metric "
            "for the loss that is trained"
        )
