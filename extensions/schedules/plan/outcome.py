r"""Predict what a table of batch sizes takes under every rule of the learning rate, and whether it pays off.

Runs with the same path of eta/B over *intrinsic time*, the sum of the learning rates so far, coincide. A plan therefore
reaches the target once its intrinsic time equals that of the constant run of its *last* batch size B at that one's best
learning rate eta (which the plan also has to use), and once what its early stages lost is made up for:

.. math:: S = S(B) + \sum_k n_k (1 - (1 - \lambda x_k) \eta_k/\eta), \quad x_k = 1 - \frac{\eta/B}{\eta_k/B_k}

with :math:`n_k` steps in the earlier stages. Their noise exceeds that of the last stage by the fraction :math:`x_k`,
and is not completely forgotten by the end: progress is lost in proportion, nothing if eta/B is unchanged,
:math:`\lambda` if the last stage has negligible noise in comparison. The value of :math:`\lambda` depends on the
curvatures; it is bounded by :data:`LOST` and drawn uniformly. In addition to it, draws include :data:`OFF`, up to one
step more or less (because steps are integers and intrinsic time is not), and the draws of the curve of the whole run,
which gives S(B) and the constant batch size with which a plan is compared.

At a constant learning rate, the loss late in a run is the noise of the last steps, proportional to eta/B, on top of
what any batch size would have reached by then; a larger batch removes the noise of earlier steps. The learning rate
that suits the *last* batch size therefore suits the whole run (**flat**), and a rate that grows with the batch would
keep the noise that the growth was meant to remove. The law of the best constant runs, and the square root, apply to
runs whose batch size is constant from the start. If the learning rate decays, growth of the batch replaces decay (Smith
et al. 2018, arXiv 1711.00489): the **ratio** rule undoes as much of the decay as the batch grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.config import AnalysisConfig
from analysis.estimate.draws import BEYOND
from analysis.estimate.prior import STEP
from analysis.formatting import number, percent
from analysis.quantities import UNKNOWN, Array, Quantity
from cbs.errors import ConfigError
from cbs.schedules.batch_size import OpenLoop
from extensions.schedules.judge.gains import fewest_examples
from extensions.schedules.plan.phases import PhaseSource, PlanCost, along, steps_of
from extensions.schedules.plan.plans import LAW, PlanOutcome, PlanRequest
from extensions.schedules.plan.stages import seconds

# Upper bound of lambda: on noisy quadratics 0 to 0.5 was observed, with and without momentum and preconditioner
LOST = 0.5

# Further standard deviation of ln S of a plan: momentum starts slowly, and constant batch sizes are better at rates
# between those of a grid. It is the most likely value for 36 plans of simulated sweeps, none of which is counted in a
# table of the docs, but it was determined after that table had been seen. The uncertainty due to the choice of the
# learning rate and to points off the curve is in the draws of the curve instead.
OFF = 0.025

FLAT, ROOT, RATIO = "flat", "square root", "ratio"


def outcomes(
    source: PhaseSource,
    ask: PlanRequest,
    table: OpenLoop,
    rules: Sequence[LearningRateRule],
    recommended: int,
    constant: int,
    config: AnalysisConfig,
) -> tuple[PlanOutcome, ...]:
    """Return the outcomes of the plan under every rule, of which one is ``recommended``, and of a constant batch
    size."""
    stages = [stage.batch_size for stage in table.stages]

    def outcome(name: str, sizes: Sequence[int], lrs: Sequence[float | None], course: PlanCost | None) -> PlanOutcome:
        known: dict[str, Any] = {}
        if course is not None:
            drawn = {"steps": course.steps, "examples": course.examples}
            if ask.throughput is not None:
                drawn["hours"] = _hours(source, ask, course, config)
            if source.whole is not None and len(sizes) > 1:
                drawn["examples_saved"] = _saved(source, course)
            known = {of: Quantity.of_draws(rows, config.confidence) for of, rows in drawn.items()}
        return PlanOutcome(name=name, batch_sizes=tuple(sizes), lrs=tuple(lrs), **known)

    def course_of(rule: LearningRateRule | None) -> PlanCost | None:
        if source.whole is None or len(stages) == 1:
            return along(source.entire, table.starts, stages)
        if rule is None or rule.base.value is None or source.decays:
            return None
        return _course(source, table, rule, config)

    plans = [
        outcome(f"plan, {rule.name}", stages, [_times(rule.base, each) for each in rule.factors], course_of(rule))
        for rule in rules
    ] or [outcome("plan", stages, [None] * len(stages), course_of(None))]
    plans[recommended] = replace(plans[recommended], recommended=True)
    best_lr = source.best_lr(constant).value
    return (*plans, outcome(f"constant {constant:,}", [constant], [best_lr], along(source.entire, [0], [constant])))


def _hours(source: PhaseSource, ask: PlanRequest, course: PlanCost, config: AnalysisConfig) -> Array:
    """Return the hours, with the spread of the step times, shape ``[1 + R]``."""
    assert ask.throughput is not None
    took, count = seconds(source, ask, course.sizes), len(course.stages) - 1
    drawn = ask.throughput.drawn(source.optimizer, course.sizes, ask.devices, count, config.seed)
    factors = np.vstack([np.ones_like(took), drawn])
    return np.asarray((course.stages * took * factors).sum(axis=1) / 3600)


def _times(base: Quantity, factor: Quantity) -> float | None:
    return None if base.value is None else factor.times(base.value).value


def _course(source: PhaseSource, table: OpenLoop, rule: LearningRateRule, config: AnalysisConfig) -> PlanCost | None:
    """Return the cost of the plan by intrinsic time; ``None`` if the last stage would begin after the target was
    reached, or a stage has a higher learning rate than the last one."""
    assert source.whole is not None
    sizes = np.array([stage.batch_size for stage in table.stages], dtype=float)
    before = np.zeros(len(sizes) - 1)
    seen = 0.0
    for stage, start in enumerate(table.starts[1:]):
        before[stage] = np.ceil((start - seen) / sizes[stage])
        seen += before[stage] * sizes[stage]
    last = steps_of([source.whole], sizes[-1:])[:, 0, 0]
    share = _of_last(source, rule, sizes, len(last))[:, :-1]
    if share[0].max() > 1 + 1e-9:
        return None
    rng = np.random.default_rng(config.seed)
    lost = np.append(LOST / 2, rng.uniform(0.0, LOST, size=len(last) - 1))
    normal, whole = rng.standard_normal(len(last) - 1), rng.uniform(-1.0, 1.0, size=len(last) - 1)
    above = 1.0 - np.minimum(sizes[:-1] / sizes[-1] / share, 1.0)
    early = before.sum()
    steps = last + early - ((1.0 - lost[:, None] * above) * share) @ before
    if not steps[0] > early:
        return None
    steps[1:] = np.maximum(steps[1:] * np.exp(OFF * normal) + whole, early + 1.0)
    return PlanCost(np.column_stack([np.broadcast_to(before, (len(steps), len(before))), steps - early]), sizes)


def _of_last(source: PhaseSource, rule: LearningRateRule, sizes: Array, rows: int) -> Array:
    """Return the learning rates relative to that of the last stage, shape ``[1 + R, T]``."""
    if rule.exponent is not None:
        return np.broadcast_to((sizes / sizes[-1]) ** rule.exponent, (rows, len(sizes)))
    assert source.law is not None
    logs = source.law.log_lrs(sizes)
    return np.asarray(np.exp(logs - logs[:, -1:]))[np.arange(rows) % len(logs)]


def _saved(source: PhaseSource, course: PlanCost) -> Array:
    """Return the fraction of examples saved against the constant batch size with equally many steps, shape ``[1 + R]``;
    1 if none has so few, NaN if that batch size lies far below the measured ones."""
    assert source.whole is not None
    low, high = np.log(source.measured)
    log_sizes = np.arange(low - BEYOND, high + BEYOND, STEP)
    examples, _ = fewest_examples(log_sizes, source.whole.log_steps(np.exp(log_sizes)), course.steps)
    return np.asarray(1.0 - course.examples / examples)


def verdict(plan: PlanOutcome, source: PhaseSource, constant: PlanOutcome, config: AnalysisConfig) -> str:
    """Say in words whether the recommended plan gains anything."""
    as_good = f"a constant batch size of {constant.batch_sizes[0]:,} is as good"
    if len(plan.batch_sizes) == 1:
        kept, whole = plan.batch_sizes[0], constant.batch_sizes[0]
        other = f"; {whole:,}, near the critical one of the whole run, is as good" if whole != kept else ""
        return (
            "the critical batch size does not grow, as far as its intervals tell: keep the batch size constant, at "
            f"{kept:,}{other}"
        )
    saved, unknown = plan.examples_saved, "what the plan saves is not known"
    low, high = saved.interval
    if source.whole is None:
        return f"{unknown}: no run of a constant batch size was measured to compare it with"
    if source.decays:
        why = "the learning rate of these runs falls, so that they do not pass intermediate losses"
        return f"{unknown}: {why} as runs at a constant learning rate do"
    if plan.lrs[-1] is None:
        return (
            f"{unknown}: steps are predicted for the best learning rate, and that of its last batch size lies outside "
            "the optima that were found: extend the grid of learning rates"
        )
    if low is None or high is None:
        return f"{unknown}: the last batch size comes too late, or the curve is too uncertain, to bound the savings"
    against = f"of the examples of the constant batch size with as many steps, at {percent(config.confidence)} %"
    assert saved.value is not None
    span = f"{number(100 * saved.value)} [{number(100 * low)}, {number(100 * high)}] % {against}"
    if low <= 0 <= high:
        return f"{as_good} as far as was measured: the plan saves {span}, which includes 0"
    return f"the plan saves {span}"


@dataclass(frozen=True, kw_only=True)
class LearningRateRule:
    """One rule for the learning rate.

    Attributes:
        name: name of the rule.
        exponent: power of the batch size; ``None`` for the measured law.
        factors: factor of every stage on the learning rate of the first stage.
        base: learning rate of the first stage for which the last one has its best; no value if that is unknown.
    """

    name: str
    exponent: float | None
    factors: tuple[Quantity, ...]
    base: Quantity


def learning_rates(
    source: PhaseSource, ask: PlanRequest, sizes: Sequence[int]
) -> tuple[list[LearningRateRule], int | None]:
    """Return the rules for stages of these batch sizes, and the index of the one to use; ``None`` if nothing decides
    it."""
    last = source.best_lr(sizes[-1])
    ratios = [size / sizes[0] for size in sizes]
    exponents: dict[str, float] = {}
    if source.decays is not None:
        exponents = {FLAT: 0.0, ROOT: 0.5} | ({RATIO: 1.0} if source.decays else {})
    given = ask.lr_exponent
    if isinstance(given, float) and given not in exponents.values():
        exponents[f"batch size to the power {given:g}"] = given
    rules = [
        LearningRateRule(
            name=name,
            exponent=power,
            factors=tuple(Quantity(ratio**power, (ratio**power,) * 2) for ratio in ratios),
            base=last.times(ratios[-1] ** -power),
        )
        for name, power in exponents.items()
    ]
    if source.law is not None:
        factors = [source.law.factor(sizes[0], ratio) for ratio in ratios]
        of_law = tuple(UNKNOWN if each is None else Quantity(each.value, each.interval) for each in factors)
        base = last.times(1.0 / of_law[-1].value) if of_law[-1].value else UNKNOWN
        rules.append(LearningRateRule(name=LAW, exponent=None, factors=of_law, base=base))
    elif given == LAW:
        raise ConfigError("--lr-exponent law: no law of the learning rate was measured; give a number")
    wanted = (RATIO if source.decays else FLAT) if given is None else given
    for index, rule in enumerate(rules):
        if wanted in (rule.name, rule.exponent):
            return rules, index
    return rules, None


def beyond(source: PhaseSource, rule: LearningRateRule, sizes: Sequence[int]) -> str:
    """Return a warning if a stage has a learning rate above every one that reached the target at its batch size; empty
    otherwise."""
    if rule.base.value is None or not source.highest_lrs:
        return ""
    for size, factor in zip(sizes, rule.factors, strict=True):
        distances = [(abs(math.log(known / size)), known, highest) for known, highest in source.highest_lrs]
        _, known, highest = min(distances)
        lr = 0.0 if factor.value is None else rule.base.value * factor.value
        if lr > highest * (1 + 1e-9):
            return (
                f"at batch size {size} the learning rate {lr:.3g} is above {highest:.3g}, the largest that reached the "
                f"target at a constant batch size of {known}: watch the first steps"
            )
    return ""
