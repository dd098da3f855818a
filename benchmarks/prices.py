"""What an answer costs for language models of three sizes, by computation: the table of docs/prices.md.

    python -m benchmarks.prices [--gpu-hour 2.5] [--write docs/prices.md]

Prices are in GPU-hours, or in dollars with the price of one.

A run at B_crit sees 20 tokens for each parameter, its FLOPs are 6 N D, and an H100 works at 40 % of its peak
(:mod:`sweeps.outlook.price`). How many such runs an answer takes is :data:`sweeps.outlook.price.RUNS`.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.telling import head, line, renewed
from extensions.branching.prices import branch_price
from extensions.noise_scale.prices import noise_scale_price
from sweeps.outlook.price import (
    RUNS,
    CriticalRun,
    Price,
    accelerator_hours,
    price,
    span,
    training_flops,
)
from sweeps.spec.spec import Sweep

MODELS = {"125M": 125_000_000, "1B": 1_000_000_000, "7B": 7_000_000_000}  # Number of parameters by name

TOKENS_PER_PARAMETER = 20  # Of a run at B_crit: assumed

BEGIN, END = "<!-- python -m benchmarks.prices --write docs/prices.md -->\n", "<!-- end of prices -->\n"
"""Lines of the page between which the table stands."""


def critical_tokens(parameters: int) -> float:
    """Return E_min/S_min in tokens, from the law of Zhang et al. (2024, arXiv 2410.21676) for models on C4.

    Their critical batch size, 93.2 N^0.468 sequences of 512 tokens for N million parameters trained on 20 tokens for
    each, is the largest with at most 20 % more steps than perfect scaling from B = 256; on their curves a + b/B this is
    1.2 x 256 + 0.2 b/a, with b/a = E_min/S_min.
    """
    overhead = 93.20 * (parameters / 1e6) ** 0.468
    return 512 * (overhead - 1.2 * 256) / 0.2


def run_of(parameters: int) -> CriticalRun:
    """Return what a run at B_crit takes; an example is a token."""
    tokens = float(TOKENS_PER_PARAMETER * parameters)
    flops = training_flops(parameters, tokens)
    return CriticalRun(
        examples=tokens,
        steps=tokens / critical_tokens(parameters),
        parameters=parameters,
        flops=flops,
        gpu_hours=accelerator_hours(flops),
    )


def rows(gpu_hour: float | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table, the header first."""
    answers = {goal: runs for goal, runs in RUNS.items() if goal <= Sweep.usual_precision}
    sweeps = [f"`cbs sweep`, {goal:.0%}: {span(runs)} runs" for goal, runs in answers.items()]
    yield "model", "B_crit in tokens", "steps of a run", "a run", *sweeps, "`cbs branch`", "`cbs noise-scale`"
    for name, parameters in MODELS.items():
        run = run_of(parameters)
        prices = [price((1, 1, 1), run, gpu_hour), *(price(runs, run, gpu_hour) for runs in answers.values())]
        prices += [_known(branch_price(run, gpu_hour)), _known(noise_scale_price(run, gpu_hour))]
        amounts = [each.gpu_hours if gpu_hour is None else each.dollars for each in prices]
        about = name, f"{critical_tokens(parameters) / 1e6:.1f}M", span((run.steps or 0.0,) * 3)
        yield *about, *(span(each) for each in amounts if each)


def _known(found: Price | None) -> Price:
    assert found is not None
    return found


def table(gpu_hour: float | None = None) -> str:
    """Return the table in Markdown."""
    titles, *body = rows(gpu_hour)
    return "\n".join([head(titles), *map(line, body)]) + "\n"


def written(page: str) -> str:
    """Return a page with the table as it is now."""
    return renewed(page, BEGIN, END, f"\n{table()}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu-hour", type=float, help="dollars for an hour of an H100: prices in dollars")
    parser.add_argument("--write", type=Path, help="page in which to renew the table")
    asked = parser.parse_args()
    if asked.write is None:
        print(table(asked.gpu_hour), end="")
    else:
        asked.write.write_text(written(asked.write.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
