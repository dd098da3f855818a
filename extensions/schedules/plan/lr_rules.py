r"""Rules for the learning rate of a table of batch sizes, and which one to use.

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
from dataclasses import dataclass

from analysis.arrays import UNKNOWN, Quantity
from cbs.errors import ConfigError
from extensions.schedules.plan.plans import LAW, PlanRequest
from extensions.schedules.plan.source import PhaseSource

FLAT, ROOT, RATIO = "flat", "square root", "ratio"


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
    for place, rule in enumerate(rules):
        if wanted in (rule.name, rule.exponent):
            return rules, place
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
