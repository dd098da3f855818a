"""The options of ``cbs sweep`` that say what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cbs.registry import completing, listed


def sweep_flags(
    optim: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Optimizer: {listed('cbs.optimizers')}; one of 'cbs optimizers --libraries'; or package.module:name. "
            "With options: 'muon(nesterov=false)'. Repeats.",
            autocompletion=completing("cbs.optimizers"),
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help=f"One of {listed('sweeps.recipes')}.", show_default=False, autocompletion=completing("sweeps.recipes")
        ),
    ] = "default",
    workload: Annotated[
        str | None,
        typer.Option(
            help=f"{listed('cbs.workloads')}, or package.module:function.", autocompletion=completing("cbs.workloads")
        ),
    ] = None,
    target: Annotated[float | None, typer.Option(help="Value of the validation metric to train to.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="EXAMPLES",
            help="In place of a target, examples that every trial sees: 2e6, 1e6,2e6,4e6 or '64M tokens'.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="In examples: 4,8,16, or 4..512 for powers of two. Default: found."),
    ] = None,
    lrs: Annotated[
        str | None,
        typer.Option(help="1e-3,2e-3, or one per batch size: sqrt:5e-3@32768, 64:1e-3,128:2e-3. Default: a search."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds (3), or a list (0,1,2).")] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Batch-size schedule: {listed('cbs.schedules.batch_size')}, or package.module:name. Repeats.",
            hidden=True,
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUES",
            help="Also tune an option: momentum=0.9,0.95; or run a sweep for each value of a setting. Repeats.",
            hidden=True,
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RESULTS", help="Start the search at the best learning rates there.", hidden=True
        ),
    ] = None,
    from_checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Start every trial from a checkpoint.", hidden=True),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Others: 'cbs explain --settings'. Repeats.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())
