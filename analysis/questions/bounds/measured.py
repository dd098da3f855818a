"""From a folder of results to the bounds beside the critical batch sizes, and what became of their predictions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.arrays import UNKNOWN, Quantity
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.fitting.quality import Misfit
from analysis.estimate.laws.steps_bound import FORMS, BoundFit, best_over_smallest, fit_bound
from analysis.estimate.result import Answer
from analysis.plain import shown
from analysis.questions.analyze import Findings, Scope, read_scopes
from analysis.questions.bounds.margins import Check, Told
from analysis.questions.bounds.predictions import convex_examples, form_check, shape_checks
from analysis.questions.bounds.settings import Setting, setting_of
from analysis.questions.bounds.variants import Scaled, Variant, bests_of, scalings
from analysis.questions.protocols import protocols
from cbs.errors import ConfigError
from cbs.target import Target


@dataclass(frozen=True, kw_only=True)
class MeasuredBound:
    """The form of a steps bound through the measured steps of one optimizer.

    Attributes:
        answer: its critical batch size.
        optimizer: its name.
        setting: what the bounds look at; ``None`` where they are not about this optimizer.
        form: of the bound, see :data:`analysis.estimate.laws.steps_bound.FORMS`; empty without one.
        fit: of the form; ``None`` without one.
        best: ``b*`` of the form in examples; no value where the steps do not have the form.
        pole: ``b_0`` of the form, likewise.
        largest_best: ``b*`` lies below this whatever the steps, see :mod:`analysis.estimate.laws.steps_bound`.
        residual_rms: of the form, in log steps.
        misfit: of the form; ``None`` where undefined.
        checks: what became of the predictions.
        remark: what has to be said; empty if nothing.
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
    checks: tuple[Check, ...]
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
    """The optimizers of one sweep, workload and target.

    Attributes:
        bounds: one per optimizer.
        scalings: what the bounds predict between settings of one optimizer.
    """

    bounds: tuple[MeasuredBound, ...]
    scalings: tuple[Scaled, ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredBounds(Findings):
    """What :func:`measured_bounds` found.

    Attributes:
        one_lr: whether one learning rate served all batch sizes, as the bounds assume; else the best of each.
        scopes: one per sweep, workload and target.
    """

    one_lr: bool
    scopes: tuple[BoundScope, ...]


def measured_bounds(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    form: str | None = None,
    one_lr: bool = False,
) -> MeasuredBounds:
    """The forms of steps bounds through measured steps, and which predictions of the bounds hold.

    Args:
        path, config, targets: as of :func:`analysis.analyze`.
        form: for every optimizer, also for those that no bound is about; ``None`` for each its own.
        one_lr: take the steps at the one learning rate that reaches the target at the most batch sizes, see
            :func:`analysis.questions.protocols.protocols`, instead of at the best one of every batch size.

    Raises:
        ConfigError: if an argument is out of its domain or a target cannot be used.
        ResultsError: if there are no usable results at ``path``.
    """
    if form is not None and form not in FORMS:
        raise ConfigError(f"--form must be one of {', '.join(FORMS)}, got {form!r}")
    found, notes = read_scopes(path, config, targets)
    scopes = []
    for scope in found:
        said: list[str] = []
        answers = [_at_one_lr(answer, said) if one_lr else answer for answer in scope.answers]
        bounds = tuple(_bound(answer, form) for answer in answers)
        notes += tuple(f"{scope.title}: {line}" if len(found) > 1 else line for line in said)
        scopes.append(
            BoundScope(
                title=scope.title, answers=tuple(answers), bounds=bounds, scalings=scalings(list(_variants(bounds)))
            )
        )
    return MeasuredBounds(config=config, one_lr=one_lr, scopes=tuple(scopes), notes=notes)


def _at_one_lr(answer: Answer, said: list[str]) -> Answer:
    ways = {way.name: way for way in protocols(answer)}
    one = ways.get("one for all batch sizes")
    if one is None:
        said.append(f"{answer.group.optimizer}: no learning rate is known to have reached the target")
        return answer
    rates = sorted(set(one.lrs.values()))
    said.append(f"{answer.group.optimizer}: learning rate {', '.join(f'{rate:g}' for rate in rates)}")
    lacking = sorted({size for missing in one.missing for size in missing.batch_sizes})
    if lacking:
        said[-1] += f"; not run with all seeds at batch size {', '.join(map(str, lacking))}"
    return one.answer


def _bound(answer: Answer, wanted: str | None) -> MeasuredBound:
    setting, remark = None, ""
    try:
        setting = setting_of(answer.group)
    except ConfigError as error:
        remark = str(error)
    form = wanted or (setting.form if setting else "")
    fit = fit_bound(form, answer.fit, answer.confidence) if form and answer.fit is not None else None
    check, test = form_check(answer, fit)
    found = MeasuredBound(
        answer=answer,
        optimizer=answer.group.optimizer,
        setting=setting,
        form=form,
        fit=fit,
        checks=(*shape_checks(answer), *((convex_examples(answer, fit, check), check) if form else ())),
        remark=remark or (setting.remark if setting else ""),
    )
    if fit is None or answer.fit is None:
        return found
    refused = check.verdict is Told.FAILS
    return replace(
        found,
        best=UNKNOWN if refused else fit.best,
        pole=UNKNOWN if refused else fit.pole,
        largest_best=best_over_smallest(form) * float(answer.fit.batch_sizes[0]),
        residual_rms=fit.residual_rms,
        misfit=test,
    )


def _variants(bounds: Sequence[MeasuredBound]) -> Iterator[Variant]:
    for bound in bounds:
        if bound.setting is not None and bound.answer.fit is not None:
            bests = bests_of(bound.answer, bound.fit, bound.checks[-1])
            yield Variant(answer=bound.answer, setting=bound.setting, bests=bests)
