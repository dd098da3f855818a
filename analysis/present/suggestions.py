"""Describe suggested trials in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.estimate.suggest import Suggestion
from analysis.phrases import number


def in_words(suggestions: Sequence[Suggestion]) -> Iterator[str]:
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
