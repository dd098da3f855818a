"""What an answer and suggested trials say in words, for terminal, page and paper."""

import inspect
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, HEADLINE, symbol
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer, CriticalBatchSize
from analysis.estimate.suggest import Suggestion
from analysis.formatting import B_CRIT, DASH, beyond, ends, number, with_interval


def good(answer: Answer) -> str:
    """Say in which batch sizes steps times examples are within 10 % of the least; an end beyond the measured ones as
    such."""
    if answer.draws is None:
        return DASH
    low, high = answer.near
    first, last = answer.draws.batch_sizes[[0, -1]]
    if (low or 0) > last or (high or math.inf) < first:
        return f"> {number(last)}" if (low or 0) > last else f"< {number(first)}"
    return " to ".join(
        (f"< {number(first)}" if low is None else number(low), f"> {number(last)}" if high is None else number(high))
    )


VERDICTS = {
    Verdict.OK: (
        "No problems found: steps x examples are least inside the measured batch sizes, every best learning "
        "rate lies inside the grid that was tried or is known from other batch sizes, and there are several seeds."
    ),
    Verdict.NOT_REACHED: "No batch size reached the target, so there is no curve and no critical batch size.",
    Verdict.UNTOLD: "Branches scatter too much, or too few trained to the end, to say which of them lost.",
    Verdict.NONE_LOST: "The branch of the largest batch is as good as the best: the answer is only known from below.",
    Verdict.ALL_LOST: "Only the branch of the smallest batch is as good: the answer is only known from above.",
    Verdict.TOO_FEW_BATCH_SIZES: "Too few batch sizes reached the target to show where steps x examples are least.",
    Verdict.BELOW: (
        "Steps x examples may be least below the smallest batch size, so the critical batch size is only "
        "known from above."
    ),
    Verdict.ABOVE: (
        "Steps x examples may be least above the largest batch size, so the critical batch size is only known "
        "from below."
    ),
    Verdict.AT_GRID_EDGE: (
        "At some batch size the best learning rate is the lowest or the highest that was tried: a better one "
        "may lie outside, and the steps there may be too many."
    ),
    Verdict.COARSE_STEPS: (
        "At some batch size too little was measured near the target: the steps there may be far too many."
    ),
    Verdict.NOISY_STEPS: (
        "At some batch size the first evaluation past the target looks like noise, as it comes well before "
        "the trend of the run: the steps there are too few."
    ),
    Verdict.IN_WARMUP: (
        "The warmup of the learning rate is a large part of the runs to the target: without it the answer "
        "would be another."
    ),
    Verdict.FAR_SEED: (
        "One seed took far more or far fewer steps than the others at its batch size; every second draw "
        "leaves it out, and the interval allows for both."
    ),
    Verdict.NEAR_DIVERGENCE: (
        "Branches diverge, or scatter far more than those of smaller batches, where the answer lies: few seeds miss "
        "the worst ones."
    ),
    Verdict.SHORT_WINDOW: "After half of the window the branches give another answer: with more examples it moves on.",
    Verdict.SOME_FAILED: "At a best learning rate some seeds failed, and the loss is that of the others only.",
    Verdict.OFF_THE_CURVE: (
        "The steps jump, bend at once or grow between batch sizes, which no smooth curve follows: what is "
        "read between them is doubtful."
    ),
    Verdict.PRIOR_DECIDES: (
        "With priors half or twice as wide the answer would be another: it comes from what was assumed more "
        "than from the runs."
    ),
    Verdict.EXTRAPOLATED: (
        "The definition that was asked for lies at an asymptote of the fitted law, beyond all that was measured."
    ),
    Verdict.COARSE_RATES: "A learning rate between those that were run may save more than the margin.",
    Verdict.NOT_TUNED: "One learning rate per batch size was run: each loss is at that one, not at the best.",
    Verdict.TOO_WIDE: "The interval spans a factor of ten or more: too wide to choose a batch size by.",
    Verdict.TOO_FEW_SEEDS: (
        "There is one seed: the interval comes from how far the points lie from the curve, and a difference "
        "between optimizers may be luck."
    ),
}
"""What every verdict means."""

QUOTE_NUMBER = "Ok: quote the number with its interval."


def quote(answer: Answer, *, numbers: bool = True) -> str:
    """Say what may be quoted of an answer: the number only where the verdict is ok. Without ``numbers`` it may be said
    of several answers that are alike in it, whose intervals and bounds stand in a table."""
    value, interval = answer.critical_batch_size, answer.interval
    if answer.verdict is Verdict.OK:
        return QUOTE_NUMBER
    if None not in interval:
        what = f"the interval {ends(interval)}" if numbers else "the interval"
    elif bound := beyond(interval):
        what = f"'{bound}'" if numbers else "the bound"
    else:
        return "Not ok: there is no number to quote, only the reason."
    return f"Not ok: quote {what} with the reason{'' if value is None else ', not the number'}."


def judged(answers: Sequence[Answer], *, advice: bool = False, each: bool = False) -> Iterator[str]:
    """Yield, for every answer, its verdict or with ``advice`` the first thing to do, and what may be quoted; what is
    said of several stands once, what speaks against answers first. With ``each`` every interval is quoted in words,
    where no table beside it has the numbers."""
    by_text: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        verdict = "" if answer.verdict is Verdict.OK else str(answer.verdict)
        against = answer.advice.partition("; ")[0] if advice else verdict
        by_text.setdefault((against, quote(answer, numbers=each)), []).append(answer)
    for (against, of_several), alike in sorted(by_text.items(), key=lambda entry: not entry[0][0]):
        quotes = {quote(answer) for answer in alike}
        said = quotes.pop() if len(quotes) == 1 else of_several
        text = " ".join(filter(None, (against and f"{against}{'' if against.endswith('?') else '.'}", said)))
        start = text[:1] if text[1:2].isupper() else text[:1].lower()  # "LR optimum at ..." remains
        yield text if len(by_text) == 1 else f"{named(alike, answers)}: {start}{text[1:]}"


def quotes(answers: Sequence[Answer], said: Sequence[str]) -> Iterator[str]:
    """Yield what may be quoted of every answer whose sentence in ``said`` has no numbers, as it is of several."""
    for answer in answers:
        text = quote(answer)
        if text[1:] not in " ".join(said):
            yield f"{named([answer], answers)}: {text[:1].lower()}{text[1:]}"


def named(some: Sequence[Answer], answers: Sequence[Answer]) -> str:
    """Return the optimizers of some of the answers, with their targets if the answers have several."""
    by_target: dict[str, list[str]] = {}
    for answer in some:
        by_target.setdefault(str(answer.target), []).append(answer.group.optimizer)
    several = len({str(answer.target) for answer in answers}) > 1
    return "; ".join(
        f"{', '.join(names)} at {target}" if several else ", ".join(names) for target, names in by_target.items()
    )


def home(answers: Sequence[Answer]) -> str:
    """Return the folder of the results, as it is typed; empty if it is not known."""
    folders = [Path(answer.group.folder) for answer in answers if answer.group.manifest]
    if not folders:
        return ""
    folder = Path(os.path.commonpath(folders))
    return shlex.quote(str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder))


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


def suggested(suggestions: Sequence[Suggestion], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield lines to print; the command is on a line of its own, to be copied."""
    of = {(answer.group.sweep, answer.group.optimizer, str(answer.target)): answer for answer in answers}
    for entry in suggestions:
        answer = of[entry.group.sweep, entry.group.optimizer, str(entry.target)]
        yield f"trials that would help {entry.group.optimizer}, {entry.target}: {'; '.join(entry.reasons)}"
        yield "; ".join(f"{name}: {value}" for name, value in facts(entry, answer).items())
        yield f"  {entry.command}" if entry.command else "  (this sweep was not run by cbs sweep: no command)"


def facts(suggestion: Suggestion, answer: Answer) -> dict[str, str]:
    """Return which trials are suggested, their cost, and their effect on the interval if it is closed."""
    sizes, seeds = (", ".join(map(str, values)) for values in (suggestion.batch_sizes, suggestion.seeds))
    count = "" if suggestion.trials is None else f"{suggestion.trials} trials: "
    lrs = ", learning rates are searched" if suggestion.trials is None else ""
    if suggestion.lrs is not None:
        lrs = f", learning rate {', '.join(f'{lr:.4g}' for lr in suggestion.lrs)}"
    entries = {"trials": f"{count}batch size {sizes}, seed {seeds}{lrs}"}
    entries["they take"] = f"about {number(suggestion.cost)} {suggestion.group.example_unit}s"
    factor = suggestion.interval_factor
    if factor is not None and factor < 1 and None not in answer.interval:
        entries["interval afterwards"] = f"about {number(factor, 2)} times as wide as now, on a log scale"
    return entries
