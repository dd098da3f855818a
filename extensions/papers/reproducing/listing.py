"""List of all recipes of papers, with their cost at both scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from analysis.phrases import DASH, number
from extensions.papers.experiments import PAPERS
from extensions.papers.reproducing.price import prices


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
