"""Recipes, prices and verdicts as lines of text, and the list of all recipes with their cost at both scales."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.formatting import DASH, number
from analysis.quantities import Quantity
from extensions.papers.experiments import PAPERS, PaperRecipe
from extensions.papers.reproducing.asking import command_line
from extensions.papers.reproducing.price import RunPrice, prices
from extensions.papers.reproducing.reproduce import Reproduction

WIDTH = 110


def recipe_lines(name: str, recipe: PaperRecipe, output: Path) -> Iterator[str]:
    """Yield the protocol, deviations, runs, analyses and expectations of a recipe."""
    yield f"{name}: {recipe.title}"
    yield f"  {recipe.paper}"
    yield ""
    yield from _wrapped("protocol    ", recipe.protocol)
    for deviation in recipe.deviations:
        yield from _wrapped("differs     ", deviation)
    for run in recipe.runs:
        axes = run.sweep.axes.to_json()
        sizes = ", ".join(map(str, axes["batch_sizes"]))
        goal = f"{', '.join(f'{each:,}' for each in run.sweep.budgets)} examples" if run.sweep.budgets else "to target"
        yield from _wrapped(
            f"run {run.name:<8}",
            f"{run.sweep.trial.workload}; {', '.join(axes['optimizers'])}; batch sizes {sizes}; {goal}; "
            f"{len(run.sweep.axes.seeds)} seeds",
        )
    for question in recipe.analyses.values():
        yield from _wrapped("analysis    ", f"cbs {command_line(question, output)}")
    for each in recipe.expectations:
        yield ""
        yield from _wrapped("expected    ", f"{each.claim} ({each.relation})")
        yield from _wrapped("published   ", f"{each.published}; {each.source}")


def price_lines(prices: Sequence[RunPrice], rate: float) -> Iterator[str]:
    """Yield the cost of every run, and the total."""
    for each in prices:
        published = "" if each.published is None else f" (published: {number(each.published)})"
        amounts = [f"{each.trials} trials", f"{number(each.examples)} examples"]
        if each.tokens is not None and each.flops is not None:
            amounts += [f"{number(each.tokens)} tokens", f"{number(each.flops)} FLOPs"]
            amounts.append(f"{number(each.hours(rate))} accelerator hours")
        yield from _wrapped(
            f"run {each.run:<8}", f"{number(each.parameters)} parameters{published}: {', '.join(amounts)}"
        )
    known = [hours for each in prices if (hours := each.hours(rate)) is not None]
    if known:
        yield f"in all      {number(sum(known))} accelerator hours"
        yield from _wrapped(
            "            ",
            f"FLOPs are 6 N D for N parameters in all and D tokens; hours at {rate / 1e12:g} TFLOP/s; evaluations are "
            "not included, and the search is assumed to add as many trials as usual",
        )
    if len(known) < len(prices):
        yield "            no FLOPs are given for runs whose examples have no tokens, as 6 N D does not hold there"


def verdict_lines(outcome: Reproduction) -> Iterator[str]:
    """Yield every statement with the published numbers, ours, and the verdict."""
    yield f"{outcome.recipe.title}: {outcome.recipe.paper}"
    for each in outcome.judged:
        yield ""
        yield from _wrapped("claim       ", each.expectation.claim)
        yield from _wrapped("published   ", f"{each.expectation.published}; expected {each.expectation.relation}")
        yield from _wrapped("ours        ", told(each.found, "; ".join(each.why)))
        yield f"verdict     {each.verdict}"
    for line in outcome.failures.values():
        yield from _wrapped("no analysis ", line)
    if not outcome.complete:
        yield "not complete: a limit was reached, or trials failed; the same command continues"
    for file in outcome.figures:
        yield f"figure      {outcome.output / file}"


def told(found: Sequence[Quantity], why: str) -> str:
    """Return the numbers with their intervals, an exact one without, and the reason why they do not count."""
    numbers = ", ".join(number(e.value) if _exact(e) else open_ended(e) for e in found)
    return f"{numbers} ({why})" if numbers and why else numbers or why


def open_ended(quantity: Quantity) -> str:
    """Return a number with its interval; an end without a value reads ``open``, as the number may have either sign."""
    low, high = (number(end) if end is not None else "open" for end in quantity.interval)
    return f"{number(quantity.value)} [{low}, {high}]" if quantity.interval != (None, None) else number(quantity.value)


def _exact(quantity: Quantity) -> bool:
    low, high = quantity.interval
    return low is not None and high is not None and math.isclose(low, high, rel_tol=1e-9)


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False
    ) or [label]


def listing() -> list[dict[str, Any]]:
    """Return a row per recipe: name, title, paper, planned minutes and number of statements at the tiny scale, and the
    examples and accelerator hours of its sweeps at the paper's scale."""
    rows = []
    for name in PAPERS:
        tiny, paper = PAPERS.make(name, "tiny"), PAPERS.make(name, "paper")
        priced = prices(paper.runs)
        hours = [each.hours() for each in priced]
        rows.append(
            {
                "name": name,
                "title": tiny.title,
                "paper": tiny.paper,
                "minutes": tiny.minutes,
                "statements": len(tiny.expectations),
                "paper_examples": sum(each.examples for each in priced),
                "paper_accelerator_hours": None if None in hours else sum(each for each in hours if each),
            }
        )
    return rows


def listing_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the list as text."""
    width = max(len(row["name"]) for row in rows)
    yield f"{'recipe':<{width}}  {'tiny':>7}  {'paper (H100 h)':>14}  topic"
    for row in rows:
        hours = row["paper_accelerator_hours"]
        cost = DASH if hours is None else "0" if hours == 0 else number(hours)
        yield f"{row['name']:<{width}}  {row['minutes']:>3g} min  {cost:>14}  {row['title']}"
    yield "minutes: planned, on two cores; hours: 6 N D at 40 % of 989 TFLOP/s, with the search of learning rates"
