"""Recipes, prices and verdicts in words: lines of text, the list of all recipes with their cost at both scales, and the
atlas, a page with a row for every published statement that recipes look for, made from stored verdicts."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from analysis.formatting import DASH, number
from analysis.quantities import Quantity
from cbs.errors import DataError, ResultsError, reason
from cbs.files import atomic_file
from cbs.registry.choices import Choice
from cbs.trial.target import Target
from cbs.workloads import build_workload
from extensions.papers.experiments import PAPERS, PaperRecipe, RecipeRun, Reproduced
from extensions.papers.reproducing.asking import command_line
from extensions.papers.reproducing.reproduce import SCHEMA, Reproduction
from sweeps.launching.policies import parts
from sweeps.outlook.price import PEAK, UTILISATION, accelerator_hours, count_parameters, training_flops
from sweeps.outlook.remaining import outlook

WIDTH = 110  # Columns of a screen
LEAST_HOURS = 0.01  # Runs shorter than this on an accelerator are made on a processor, and hours say nothing of them


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
    """Yield the cost of every run, and the total; in accelerator hours where they are not mere seconds."""
    known = [hours for each in prices if (hours := each.hours(rate)) is not None]
    long = sum(known) >= LEAST_HOURS
    for each in prices:
        published = "" if each.published is None else f" (published: {number(each.published)})"
        amounts = [f"{each.trials} trials", f"{number(each.examples)} examples"]
        if each.tokens is not None and each.flops is not None:
            amounts += [f"{number(each.tokens)} tokens", f"{number(each.flops)} FLOPs"]
            amounts += [f"{number(each.hours(rate))} accelerator hours"] if long else []
        yield from _wrapped(
            f"run {each.run:<8}", f"{number(each.parameters)} parameters{published}: {', '.join(amounts)}"
        )
    if long:
        yield f"in all      {number(sum(known))} accelerator hours"
    if known:
        at = f" hours at {rate / 1e12:g} TFLOP/s;" if long else ""
        yield from _wrapped(
            "            ",
            f"FLOPs are 6 N D for N parameters in all and D tokens;{at} evaluations are not included, and the "
            "search is assumed to add as many trials as usual",
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


HEAD = """# Atlas: what of the literature was found again

Which published statements hold here? Each was written into its recipe before the recipe was first run. Tables have
those with an answer: the published value, ours with a 95 % interval, and the
[verdict](../../../docs/papers.md#verdicts). The numbers of those that cannot be told are in the files beside this page,
from which `cbs recipes atlas` makes it. Seconds are of one core.

Tiny models on little data are not the models of the papers: a statement that differs here may hold there.
"""

_KEYS = ("recipe", "scale", "title", "paper", "command", "date", "verdicts", "complete")


def atlas(folder: Path, page: Path) -> int:
    """Write the page of all tables of verdicts in a folder, and return its number of statements.

    Raises:
        ResultsError: if there is no table, or the page cannot be written.
        DataError: if a file is not a table of verdicts.
    """
    tables = [_table(path) for path in sorted(folder.glob("*.json"))]
    if not tables:
        raise ResultsError(f"no table of verdicts in {folder}; cbs reproduce NAME --record {folder} writes one")
    with atomic_file(page, "the page ", "; choose another file with --output") as draft:
        draft.write_text("\n".join(lines(tables)) + "\n")
    return sum(len(table["verdicts"]) for table in tables)


def lines(tables: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD
    counts = Counter(row["verdict"] for table in tables for row in table["verdicts"])
    yield "In all: " + ", ".join(f"{counts[str(each)]} {each}" for each in Reproduced) + "."
    if seconds := [table["seconds"] for table in tables if "seconds" in table]:
        some = "" if len(seconds) == len(tables) else f", {len(seconds)} of {len(tables)} measured"
        yield f"A recipe takes {median(seconds):,.0f} s in the median, {max(seconds):,} s at most{some}."
    dates = [table["date"] for table in tables]
    if missing := [name for name in PAPERS.names() if name not in {table["recipe"] for table in tables}]:
        yield f"\nNot recorded here, so neither found nor missed: {', '.join(f'`{name}`' for name in missing)}."
    yield f"Recorded {' to '.join(sorted({min(dates), max(dates)}))}."
    nothing = [table for table in tables if table["complete"] and len(_unknown(table)) == len(table["verdicts"])]
    for table in tables:
        if table not in nothing:
            yield from _section(table)
    if nothing:
        yield "\n## Recipes without an answer at this scale\n\nTheir statements: `cbs reproduce NAME --dry-run`.\n"
    for table in nothing:
        yield f"- {_source(table)}: {table['title']}"


def _unknown(table: dict[str, Any]) -> list[str]:
    """The statements of a recipe that cannot be told."""
    return [row["claim"] for row in table["verdicts"] if row["verdict"] == Reproduced.UNKNOWN]


def _source(table: dict[str, Any]) -> str:
    """Paper, command and time."""
    seconds = f", {table['seconds']:,} s" if "seconds" in table else ""
    return f"{table['paper']}. `{table['command']}`{seconds}"


def _section(table: dict[str, Any]) -> Iterator[str]:
    """Yield the section of a recipe: what was found in a table, then what cannot be told."""
    yield f"\n## {table['title']}\n"
    yield f"{_source(table)}."
    if not table["complete"]:
        yield "Not complete: a limit was reached, or trials failed."
    if answered := [row for row in table["verdicts"] if row["verdict"] != Reproduced.UNKNOWN]:
        yield from _rows(answered)
    if unknown := _unknown(table):
        yield f"\nCannot be told: {'; '.join(unknown)}."


def _rows(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of statements with an answer; the source that most of them share is written once, above it."""
    (source, count), alike = Counter(row["source"] for row in rows).most_common(1)[0], len(rows) > 1
    source = source if alike and 2 * count > len(rows) else ""
    alike = alike and count == len(rows) and len({row["published"] for row in rows}) == 1
    if source or alike:
        said = [
            rows[0]["published"] if alike else "",
            source + (", unless a row says otherwise" if count < len(rows) else ""),
        ]
        yield f"Published: {'; '.join(filter(None, said))}."
    head = ("statement", *([] if alike else ["published"]), "ours", "verdict")
    yield f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}"
    for row in rows:
        numbers = [Quantity(each["value"], tuple(each["interval"])) for each in row["ours"]]
        other = "" if row["source"] == source else f" ({row['source']})"
        published = [] if alike else [row["published"] + other]
        cells = (row["claim"], *published, told(numbers, "; ".join(row["why"])), row["verdict"])
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _table(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a table of verdicts: {reason(error)}") from None
    missing = [key for key in _KEYS if not isinstance(table, dict) or key not in table]
    if missing or table.get("schema_version") != SCHEMA:
        problem = f"lacks {', '.join(missing)}" if missing else "is of another version"
        raise DataError(
            f"{path} is not a table of verdicts that this version reads: it {problem}; remove it, or run again"
        )
    return table


# Options of a workload that say where its data are; its model can be built without them
_DATA = ("data", "validation", "tokenizer", "text_field", "dtype")


@dataclass(frozen=True, kw_only=True)
class RunPrice:
    """Expected cost of a run of a recipe.

    Attributes:
        run: name of the run.
        parameters: number of parameters of the model as built.
        published: number of parameters that the paper gives; ``None`` if it gives none.
        trials: number of trials that the search is expected to run.
        examples: number of examples of all these trials.
        tokens: number of tokens of these examples; ``None`` if examples have no tokens.
        flops: 6 N D, with N parameters and D tokens; ``None`` without tokens.
    """

    run: str
    parameters: int
    published: float | None
    trials: int
    examples: float
    tokens: float | None
    flops: float | None

    def hours(self, rate: float = PEAK * UTILISATION) -> float | None:
        """Return the hours on one accelerator that achieves ``rate`` FLOP/s."""
        return None if self.flops is None else accelerator_hours(self.flops, rate)

    def to_json(self, rate: float) -> dict[str, Any]:
        return vars(self) | {"accelerator_hours": self.hours(rate)}


def prices(runs: Sequence[RecipeRun]) -> list[RunPrice]:
    """Return the cost of every run, without trials that its policy adds."""
    return [price(run) for run in runs]


def price(run: RecipeRun) -> RunPrice:
    """Return the cost of a run, from a simulation of its search, see :mod:`sweeps.outlook.remaining`."""
    sweep, tokens_per_example = run.sweep, run.tokens_per_example
    if run.model is None and tokens_per_example is None:
        workload = build_workload(without_data(sweep.trial.workload))
        tokens_per_example = workload.tokens_per_example
    if sweep.target is None:  # trials end at a budget; the target, which the simulation needs, has no effect
        sweep = sweep.replace(target=Target(metric="validation_loss", value=0.0))
    examples, trials = 0.0, 0
    for part in parts(sweep)[: 1 if sweep.shares_trials else None]:
        _, played = outlook(part, (), None, workers=1)
        examples, trials = examples + played.examples, trials + len(played.results)
    tokens = None if tokens_per_example is None else examples * tokens_per_example
    parameters = parameters_of(run)
    return RunPrice(
        run=run.name,
        parameters=parameters,
        published=run.parameters,
        trials=trials,
        examples=examples,
        tokens=tokens,
        flops=None if tokens is None else training_flops(parameters, tokens),
    )


def parameters_of(run: RecipeRun, *, without_embeddings: bool = False) -> int:
    """Return the number of parameters of the model of a run."""
    build = run.model or build_workload(without_data(run.sweep.trial.workload)).build_model
    return count_parameters(build, without_embeddings=without_embeddings)


def without_data(workload: Choice) -> Choice:
    """Return the workload without the options that name its data; its model stays the same."""
    kept = {name: value for name, value in workload.options.items() if name not in _DATA}
    return replace(workload, options=kept)
