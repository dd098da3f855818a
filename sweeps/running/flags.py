"""The flags of ``cbs sweep`` about where trials run."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def resource_flags(
    workers: Annotated[int | None, typer.Option(help="Most trials at a time. Default: one per core.")] = None,
    workers_per_trial: Annotated[
        int,
        typer.Option(help="Processes that train a trial together, each with a GPU where there are any."),
    ] = 1,
    shard: Annotated[
        bool,
        typer.Option("--shard", help="Each of them holds a part of the model (FSDP2), not all (DDP)."),
    ] = False,
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(help="Share of a GPU per trial. Default: 1 per worker where there is one."),
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster, or auto.")] = None,
) -> dict[str, Any]:
    """What was given, as :class:`sweeps.running.cluster.Resources` takes it."""
    return dict(locals())
