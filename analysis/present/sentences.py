"""What an answer and suggested trials say in words, for terminal, page and paper."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, HEADLINE, symbol
from analysis.estimate.result import Answer, CriticalBatchSize
from analysis.estimate.suggest import Suggestion
from analysis.phrases import B_CRIT, DASH, number, with_interval


def good(answer: Answer) -> str:
    """Say in which batch sizes steps times examples are within 10 % of the least; an end beyond the measured ones as
    such."""
    if answer.draws is None:
        return DASH
    low, high = answer.near
    first, last = answer.draws.batch_sizes[[0, -1]]
    if (low or 0) > last or (high or math.inf) < first:
        return f"> {number(last)}" if (low or 0) > last else f"< {number(first)}"
    ends = f"< {number(first)}" if low is None else number(low), f"> {number(last)}" if high is None else number(high)
    return " to ".join(ends)


def sentence(critical: CriticalBatchSize) -> str:
    """Say what the definition of a critical batch size is."""
    name, rate = critical.definition, critical.options.get("exchange", 1)
    if name == HEADLINE and rate == 1:
        return B_CRIT
    if name == HEADLINE:
        return (
            f"the critical batch size B_crit is where examples times steps to the power {rate:g} are least: there one "
            f"percent fewer steps costs {rate:g} percent more examples"
        )
    first = unmarked((inspect.getdoc(DEFINITIONS[name]) or "").partition(".")[0]).removeprefix("The ")
    return f"the critical batch size {symbol(name)} is the {first[0].lower()}{first[1:]}"


def unmarked(text: str) -> str:
    """Return a docstring without its markup, on one line."""
    return re.sub(r":\w+:`([^`]*)`|``", r"\1", " ".join(text.split()))


def meaning(answer: Answer) -> str:
    """Say what the critical batch size means for a run, by the expected curve; empty if none was measured there."""
    draws, size = answer.draws, answer.critical_batch_size
    if draws is None or size is None or not answer.examples_at_critical.value:
        return ""
    first, here = draws.estimate(np.array([draws.batch_sizes[0], size]))
    steps, examples = math.exp(here - first), math.exp(here - first) * size / draws.batch_sizes[0]
    return (
        f"at B = {number(size)} a run takes {steps:.2g} times the steps and {examples:.2g} times the "
        f"{answer.group.example_unit}s of the smallest batch, {draws.batch_sizes[0]:g}"
    )


def if_hyperbola(answer: Answer) -> str:
    """Say what the hyperbola would give; empty without draws."""
    curve, unit = answer.hyperbola, answer.group.example_unit
    if curve is None:
        return ""
    size, steps, examples = (with_interval(each.value, each.interval) for each in (
        curve.critical_batch_size, curve.min_steps, curve.min_examples
    ))  # fmt: skip
    return f"with the exponent fixed at 1: E_min / S_min {size}, S_min {steps}, E_min {examples} {unit}s"


def suggested(suggestions: Sequence[Suggestion]) -> Iterator[str]:
    """Yield lines to print; the command is on a line of its own, to be copied."""
    if not suggestions:
        yield "suggestions: none, no trials of this protocol would help"
    for entry in suggestions:
        yield f"suggested for {entry.group.optimizer}, {entry.target}: {'; '.join(entry.reasons)}"
        yield "; ".join(f"{name}: {value}" for name, value in facts(entry).items())
        yield f"  {entry.command}" if entry.command else "  (this sweep was not run by cbs sweep: no command)"


def facts(suggestion: Suggestion) -> dict[str, str]:
    """Return which trials are suggested, their cost, and their effect on the interval if known."""
    sizes, seeds = (", ".join(map(str, values)) for values in (suggestion.batch_sizes, suggestion.seeds))
    count = "" if suggestion.trials is None else f"{suggestion.trials} trials: "
    lrs = ", learning rates are searched" if suggestion.trials is None else ""
    if suggestion.lrs is not None:
        lrs = f", learning rate {', '.join(f'{lr:.4g}' for lr in suggestion.lrs)}"
    entries = {"trials": f"{count}batch size {sizes}, seed {seeds}{lrs}"}
    entries["they take"] = f"about {number(suggestion.cost)} {suggestion.group.example_unit}s"
    factor = suggestion.interval_factor
    if factor is not None and factor < 1:
        entries["interval afterwards"] = f"about {number(factor, 2)} times as wide as now, on a log scale"
    return entries
