"""The options of ``cbs sweep`` that say where trials run."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def resource_flags(
    workers: Annotated[int | None, typer.Option(help="Most trials at a time. Default: one per core.")] = None,
    workers_per_trial: Annotated[
        int,
        typer.Option(help="Processes that share a trial.", hidden=True),
    ] = 1,
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(help="Share of a GPU. Default: 1 per process, if any."),
    ] = None,
    launch: Annotated[
        str, typer.Option(help="Starts a --command as a job and waits for it: 'sbatch --wait ...'.", hidden=True)
    ] = "",
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster, or auto.", hidden=True)] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Use a cluster that obeys everybody, without a token.", hidden=True),
    ] = False,
) -> dict[str, Any]:
    """Return the given options as keyword arguments of :class:`sweeps.running.resources.Resources`."""
    return dict(locals())
