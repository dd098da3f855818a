"""Compare the bounds with the critical batch sizes of a folder of results, and check their predictions."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.arrays import UNKNOWN, Quantity
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.findings import Findings, Scope, read_scopes
from analysis.estimate.fitting.misfit import Misfit
from analysis.estimate.protocols import at_learning_rate
from analysis.estimate.result import Answer
from analysis.extensions.theory.bounds.checks import CheckOutcome, PredictionCheck, form_check, inside_check
from analysis.extensions.theory.bounds.law import FORMS, BoundFit, best_over_smallest, fit_bound
from analysis.extensions.theory.bounds.settings import Setting, setting_of
from analysis.extensions.theory.bounds.variants import Scaled, Variant, bests_of, scalings
from analysis.plain import shown
from cbs.errors import ConfigError
from cbs.trial.target import Target


@dataclass(frozen=True, kw_only=True)
class MeasuredBound:
    """The form of a steps bound fitted to the measured steps of one optimizer.

    Attributes:
        answer: answer of the optimizer.
        optimizer: its name.
        setting: its properties that matter to the bounds; ``None`` if they do not cover this optimizer.
        form: form of the bound, see :data:`analysis.extensions.theory.bounds.law.FORMS`; empty if there is none.
        fit: the fitted form, if any.
        best: ``b*`` of the form in examples; no value if the steps do not have the form.
        pole: ``b_0`` of the form in examples; no value if the steps do not have the form.
        largest_best: upper limit of ``b*``, whatever the steps, see :mod:`analysis.extensions.theory.bounds.law`.
        residual_rms, misfit: residual of the form, and test of its lack of fit.
        checks: outcome of the predictions.
        remark: why there is no bound, or how it differs; empty otherwise.
    """

    answer: Answer = field(repr=False)
    optimizer: str
    setting: Setting | None
    form: str
    fit: BoundFit | None = field(repr=False)
    best: Quantity = UNKNOWN
    pole: Quantity = UNKNOWN
    largest_best: float | None = None
    residual_rms: float | None = None
    misfit: Misfit | None = None
    checks: tuple[PredictionCheck, ...]
    remark: str = ""

    def to_json(self) -> dict[str, Any]:
        answer = self.answer
        return shown(self) | {
            "critical_batch_size": answer.critical_batch_size,
            "interval": list(answer.interval),
            "fewest_examples": answer.definitions["sfo"].to_json(),
            "verdict": str(answer.verdict),
        }


@dataclass(frozen=True, kw_only=True)
class BoundScope(Scope):
    """The bounds of one sweep, workload and target, one per optimizer, and what they predict about ratios between
    settings of one optimizer."""

    bounds: tuple[MeasuredBound, ...]
    scalings: tuple[Scaled, ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredBounds(Findings):
    """Result of :func:`measured_bounds`; ``lr`` is the common learning rate of all batch sizes, as the bounds assume,
    or ``None`` for the best one of each."""

    lr: float | None
    scopes: tuple[BoundScope, ...]


def measured_bounds(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    form: str | None = None,
    lr: float | None = None,
) -> MeasuredBounds:
    """Fit the forms of steps bounds to measured steps, and check the predictions of the bounds.

    Args:
        path, config, targets: as for :func:`analysis.analyze`, including errors.
        form: form for every optimizer, even if no bound covers it; ``None`` for each one's own.
        lr: learning rate at which to take the steps, instead of the best one of every batch size.

    Raises:
        ConfigError: if nothing was run at ``lr``.
    """
    if form is not None and form not in FORMS:
        raise ConfigError(f"--form must be one of {', '.join(FORMS)}, got {form!r}")
    read_answers, notes = read_scopes(path, config, targets)
    scopes = []
    for scope in read_answers:
        answers = scope.answers
        if lr is not None:
            answers, at_lr = _at(lr, answers)
            notes += tuple(f"{scope.title}: {line}" if len(read_answers) > 1 else line for line in at_lr)
        if not answers:
            continue
        bounds = tuple(_bound(answer, form) for answer in answers)
        variants = [
            Variant(answer=each.answer, setting=each.setting, bests=bests_of(each.answer, each.fit, each.checks[-1]))
            for each in bounds
            if each.setting is not None and each.answer.fit is not None
        ]
        scopes.append(BoundScope(title=scope.title, answers=answers, bounds=bounds, scalings=scalings(variants)))
    if not scopes:
        ran = {
            float(rate)
            for scope in read_answers
            for each in scope.answers
            for study in each.studies
            for rate in study.lrs
        }
        raise ConfigError(f"--at-lr {lr:g} was not run; there are {', '.join(f'{rate:g}' for rate in sorted(ran))}")
    return MeasuredBounds(config=config, lr=lr, scopes=tuple(scopes), notes=notes)


def _at(lr: float, answers: Sequence[Answer]) -> tuple[tuple[Answer, ...], list[str]]:
    """Return the answers with only this learning rate, for the optimizers that ran it, and notes on what is missing."""
    kept, notes = [], []
    for answer in answers:
        name, ran = answer.group.optimizer, {float(rate) for study in answer.studies for rate in study.lrs}
        if not any(math.isclose(lr, rate, rel_tol=1e-6) for rate in ran):
            notes.append(f"{name}: left out, learning rate {lr:g} was not run")
            continue
        protocol = at_learning_rate(answer, lr)
        kept.append(protocol.answer)
        lacking = sorted({size for missing in protocol.missing for size in missing.batch_sizes})
        other = sorted(size for size, rate in protocol.lrs.items() if not math.isclose(lr, rate, rel_tol=1e-6))
        if lacking or other:
            where = ", ".join(map(str, sorted({*lacking, *other})))
            notes.append(f"{name}: learning rate {lr:g} was not run, or not with all seeds, at batch size {where}")
    return tuple(kept), notes


def _bound(answer: Answer, wanted: str | None) -> MeasuredBound:
    setting, remark = None, ""
    try:
        setting = setting_of(answer.group)
    except ConfigError as error:
        remark = str(error)
    form = wanted or (setting.form if setting else "")
    fit = fit_bound(form, answer.fit, answer.confidence) if form and answer.fit is not None else None
    check, test = form_check(answer, fit)
    bound = MeasuredBound(
        answer=answer,
        optimizer=answer.group.optimizer,
        setting=setting,
        form=form,
        fit=fit,
        checks=(inside_check(answer), *((check,) if form else ())),
        remark=remark or (setting.remark if setting else ""),
    )
    if fit is None or answer.fit is None:
        return bound
    refused = check.verdict is CheckOutcome.FAILS
    return replace(
        bound,
        best=UNKNOWN if refused else fit.best,
        pole=UNKNOWN if refused else fit.pole,
        largest_best=best_over_smallest(form) * float(answer.fit.batch_sizes[0]),
        residual_rms=fit.residual_rms,
        misfit=test,
    )
