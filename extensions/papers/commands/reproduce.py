"""``cbs reproduce``."""

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import errors, options
from cbs.registry import completing, listed
from sweeps.commands import AsJson, Settings
from sweeps.commands.sweep import resource_flags

RECIPES = "extensions.papers.experiments"


@options(machines=resource_flags)
def command(
    name: Annotated[
        str,
        typer.Argument(help=f"Recipe: {listed(RECIPES)}.", autocompletion=completing(RECIPES)),
    ],
    scale: Annotated[
        str, typer.Option(help="tiny: minutes on two cores. paper: the paper's models and data, for a cluster.")
    ] = "tiny",
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the recipe. Default: results/NAME-SCALE.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write the verdicts there, for cbs recipes atlas."),
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start no trial after this long: 2h, 30m, or seconds.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the protocol, what is expected, and what it costs; run nothing.")
    ] = False,
    tflops: Annotated[
        float, typer.Option(help="TFLOP/s that an accelerator achieves, for --dry-run: 40 % of an H100's 989.")
    ] = 395.6,
    *,
    machines: dict[str, Any],
    as_json: AsJson = False,
) -> None:
    """Run the experiment of a paper and compare with what it found.

    Runs sweeps and analyses, and gives a verdict on every published number. The same command continues.

    Example: cbs reproduce nqm

    Example: cbs reproduce merit-gpt2 --dry-run
    """
    from cbs.compute import device
    from cbs.errors import ConfigError
    from cbs.registry.values import parse_duration
    from cbs.trial.store import Store
    from extensions.papers.reproducing.reproduce import recipe_of, reproduce, store
    from extensions.papers.reproducing.telling import price_lines, prices, recipe_lines, verdict_lines
    from sweeps.outlook.progress import Progress
    from sweeps.running.resources import Resources
    from sweeps.search.search import Limits

    if not 0 < tflops < math.inf:
        raise ConfigError(f"--tflops must be above 0, got {tflops:g}")
    if dry_run:
        recipe = recipe_of(name, scale, settings or ())
        priced = prices(recipe.runs)
        content = [each.to_json(tflops * 1e12) for each in priced]
        lines = list(price_lines(priced, tflops * 1e12)) or ["no sweep: an analysis alone, in seconds to minutes"]
        about = recipe_lines(name, recipe, output or Path("results") / f"{name}-{scale}")
        typer.echo(json.dumps(content, indent=2, allow_nan=False) if as_json else "\n".join([*about, "", *lines]))
        return
    if record is not None:
        Store(record).check_writable()
    resources = Resources(**machines)
    outcome = reproduce(
        name,
        scale,
        output,
        settings=settings or (),
        resources=resources,
        limits=Limits(math.inf if max_time is None else time.monotonic() + parse_duration(max_time)),
        progress=Progress(errors, resources.parallel(device.count())),
        note=lambda line: errors.print(line, markup=False, soft_wrap=True),
    )
    if record is not None:
        store(outcome, record / f"{name}-{scale}.json")
    if as_json:
        typer.echo(json.dumps(outcome.to_json(), indent=2, allow_nan=False))
    else:
        typer.echo("\n".join(verdict_lines(outcome)))
