"""The flags of ``cbs sweep`` about what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cbs.registry import listed


def sweep_flags(
    optim: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Optimizer, repeats: {listed('cbs.optimizers')}, one of a library (cbs optimizers --libraries), or "
            "your own package.module:name; with options as 'muon(nesterov=false)'. Default: that of the recipe."
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help=f"Which sweep to start from: {listed('sweeps.recipes')}.")] = "default",
    workload: Annotated[
        str | None,
        typer.Option(help=f"Workload: {listed('cbs.workloads')}, or package.module:function."),
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
        typer.Option(help="Batch sizes in examples: 4,8,16 or 4..512 for powers of two."),
    ] = None,
    lrs: Annotated[
        str | None,
        typer.Option(help="Exactly these learning rates on every seed: 1e-3,2e-3. Default: search."),
    ] = None,
    lr_rule: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="One learning rate per batch size, no search: sqrt:5e-3@32768, linear:0.1@256, or 64:1e-3,128:2e-3.",
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Number of seeds (3), or a list (0,1,2).")] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Batch-size schedule, repeats: {listed('cbs.schedules.batch_size')}, or package.module:name; with "
            "options as 'seesaw(alpha=1.5)'. Default: constant.",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUES",
            help="Tune this option of the optimizers with the learning rate: momentum=0.9,0.95; of another setting, a "
            "sweep for every value: schedule.name=constant,cosine. Repeats.",
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RESULTS",
            help="Start the search where these results say; also of another width or an import.",
        ),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            help=f"Source of the noise scale of every step: {listed('cbs.noise_scale.sources')}, or none. Default: "
            "split where the model allows it, else accumulation."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, such as workload.size=200k; 'cbs sweep --set help=' lists the keys. Repeats.",
        ),
    ] = None,
) -> dict[str, Any]:
    """What was given, by the names of the parameters."""
    return dict(locals())
