r"""What a table of batch sizes takes under every rule of the learning rate, and whether it pays.

Runs with the same path of eta/B over *intrinsic time*, the sum of the learning rates so far, coincide, and the noise of
a small batch is soon forgotten under a larger one. So a plan reaches the target once its intrinsic time is that of the
constant run of its *last* batch size B at that one's best learning rate eta:

.. math:: S = S(B) + \sum_k n_k (1 - \eta_k/\eta)

with :math:`n_k` steps in the stages before. What is not forgotten by then is the model's error. On three noisy
quadratics (momentum, plain, preconditioned; 600 random tables, all rules) ln S was off by the shares of
:func:`_error`, the larger the less of the run the last stage takes. It is drawn beside the resamples of the curve of
the whole run, from which S(B) comes and the constant batch size that a plan is compared with; and so is
:data:`OFF`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity
from analysis.config import AnalysisConfig
from analysis.estimate.phases import Course, along, steps_of
from analysis.estimate.scheduled import fewest_examples
from analysis.extensions.schedule_plan.lr_rules import LearningRates
from analysis.extensions.schedule_plan.plans import Ask, Outcome
from analysis.extensions.schedule_plan.sizes import seconds
from analysis.extensions.schedule_plan.source import Source
from analysis.phrases import number, percent
from cbs.schedules.batch_size import OpenLoop

OFF = 0.06
"""Standard deviation of ln S of the constant batch size that a plan is compared with about the curve, beyond what plan
and curve have in common: points lie off a curve, learning rates off the best."""


def outcomes(
    source: Source,
    ask: Ask,
    table: OpenLoop,
    rules: Sequence[LearningRates],
    constant: int,
    config: AnalysisConfig,
) -> tuple[Outcome, ...]:
    """Of the plan under every rule, and of a constant batch size."""
    stages = [stage.batch_size for stage in table.stages]
    alone = len(stages) == 1
    found = []
    of_rules: list[LearningRates | None] = [*rules]
    for rule in of_rules or [None]:
        course = None
        if source.whole is None or alone:
            course = along([source.whole] if source.whole else source.phases, table.starts, stages)
        elif rule is not None and not source.decays:
            course = _course(source, table, rule, config)
        saved = UNKNOWN
        if course is not None and source.whole is not None and not alone:
            saved = Quantity.drawn(_saved(source, course, config), config.confidence)
        found.append(
            Outcome(
                name="plan" if rule is None else f"plan, {rule.name}",
                batch_sizes=tuple(stages),
                lrs=(None,) * len(stages) if rule is None else tuple(_times(rule.base, each) for each in rule.factors),
                steps=UNKNOWN if course is None else Quantity.drawn(course.steps, config.confidence),
                examples=UNKNOWN if course is None else Quantity.drawn(course.examples, config.confidence),
                hours=UNKNOWN if course is None else _hours(source, ask, course, config),
                examples_saved=saved,
            )
        )
    return (*found, _constant(source, ask, constant, config))


def _constant(source: Source, ask: Ask, size: int, config: AnalysisConfig) -> Outcome:
    course = along([source.whole] if source.whole else source.phases, [0], [size])
    return Outcome(
        name=f"constant {size:,}",
        batch_sizes=(size,),
        lrs=(source.best_lr(size).value,),
        steps=Quantity.drawn(course.steps, config.confidence),
        examples=Quantity.drawn(course.examples, config.confidence),
        hours=_hours(source, ask, course, config),
    )


def _hours(source: Source, ask: Ask, course: Course, config: AnalysisConfig) -> Quantity:
    """With the spread of the step times; no value without any."""
    if ask.throughput is None:
        return UNKNOWN
    took, count = seconds(source, ask, course.sizes), len(course.stages) - 1
    drawn = ask.throughput.drawn(source.optimizer, course.sizes, ask.devices, count, config.seed)
    factors = np.vstack([np.ones_like(took), drawn])
    return Quantity.drawn((course.stages * took * factors).sum(axis=1) / 3600, config.confidence)


def _times(base: Quantity, factor: Quantity) -> float | None:
    return None if base.value is None or factor.value is None else base.value * factor.value


def _course(source: Source, table: OpenLoop, rule: LearningRates, config: AnalysisConfig) -> Course | None:
    """By intrinsic time; ``None`` where the last stage begins after the target was reached, or the rule lowers the
    learning rate as batches grow."""
    assert source.whole is not None
    sizes = np.array([stage.batch_size for stage in table.stages], dtype=float)
    before = np.zeros(len(sizes) - 1)
    seen = 0.0
    for stage, start in enumerate(table.starts[1:]):
        before[stage] = np.ceil((start - seen) / sizes[stage])
        seen += before[stage] * sizes[stage]
    last = steps_of([source.whole], sizes[-1:])[:, 0, 0]
    slower = 1.0 - _of_last(source, rule, sizes, len(last))[:, :-1]
    steps, early = last + slower @ before, before.sum()
    rise = _slope(rule, sizes)
    if not steps[0] > early or rise < -1e-9:
        return None
    left = 1.0 - np.maximum(steps - early, 0.0) / steps
    drawn = np.append(0.5, np.random.default_rng(config.seed).uniform(size=len(last) - 1))
    steps = np.maximum(steps * np.exp(left * _error(rise, drawn)), early + 1.0)
    return Course(np.column_stack([np.broadcast_to(before, (len(steps), len(before))), steps - early]), sizes)


def _of_last(source: Source, rule: LearningRates, sizes: Array, rows: int) -> Array:
    """Learning rates over that of the last stage, shape ``[1 + R, T]``."""
    if rule.exponent is not None:
        return np.broadcast_to((sizes / sizes[-1]) ** rule.exponent, (rows, len(sizes)))
    assert source.law is not None
    logs = source.law.log_lrs(sizes)
    return np.asarray(np.exp(logs - logs[:, -1:]))[np.arange(rows) % len(logs)]


def _slope(rule: LearningRates, sizes: Array) -> float:
    """Power of the batch size by which the learning rate grows from the first stage to the last."""
    factor = rule.factors[-1].value
    return math.nan if factor is None else math.log(factor) / math.log(sizes[-1] / sizes[0])


def _error(slope: float, drawn: Array) -> Array:
    """Of ln S, over the share of the run before its last stage, from uniform draws: the noise of small batches at a
    rate that hardly grows is forgotten late."""
    if slope < 0.35:
        return np.asarray(0.3 * drawn**2)
    return np.asarray(-0.1 + 0.2 * drawn)


def _saved(source: Source, course: Course, config: AnalysisConfig) -> Array:
    """Share of the examples of the constant batch size with as many steps, shape ``[1 + R]``; all where none has so
    few."""
    assert source.whole is not None
    off = np.append(0.0, OFF * np.random.default_rng(config.seed + 1).standard_normal(len(course.steps) - 1))
    curve = source.whole.estimate.then(source.whole.resampled)
    examples, _ = fewest_examples(curve, course.steps * np.exp(off))
    return np.asarray(1.0 - course.examples / examples)


def verdict(plan: Outcome, source: Source, constant: Outcome, config: AnalysisConfig) -> str:
    """Whether the recommended plan buys anything, in words."""
    as_good = f"a constant batch size of {constant.batch_sizes[0]:,} is as good"
    if len(plan.batch_sizes) == 1:
        return f"the critical batch size does not grow, as far as its intervals tell: {as_good}"
    saved, unknown = plan.examples_saved, "what the plan saves is not known"
    low, high = saved.interval
    if source.whole is None:
        return f"{unknown}: no run of a constant batch size was measured to compare it with"
    if source.decays:
        return f"{unknown}: the learning rate of these runs falls, and then losses on the way are not passed alike"
    if low is None or high is None:
        return f"{unknown}: the last batch size comes so late, or the curve is known so badly, that nothing follows"
    against = f"of the examples of the constant batch size with as many steps, at {percent(config.confidence)} %"
    assert saved.value is not None
    span = f"{number(100 * saved.value)} [{number(100 * low)}, {number(100 * high)}] % {against}"
    if low <= 0 <= high:
        return f"{as_good} for all that was measured: the plan saves {span}, which holds 0"
    return f"the plan saves {span}"
