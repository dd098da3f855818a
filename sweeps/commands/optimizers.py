"""``cbs optimizers``."""

import json
from typing import Annotated

import typer

from analysis.command_options import console, errors
from cbs.errors import ConfigError
from cbs.registry import completing, listed
from sweeps.commands import AsJson


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Optimizers to describe. Default: list all.", autocompletion=completing("cbs.optimizers")),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Show which parameters of this workload the matrix part of the optimizers trains: "
            f"{listed('cbs.workloads')}, or package.module:function.",
            autocompletion=completing("cbs.workloads"),
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. muon.matrices=all. Repeatable."),
    ] = None,
    libraries: Annotated[
        bool, typer.Option("--libraries", help="Also list those of torch.optim and pytorch-optimizer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the optimizers, or describe one.

    Family, paper, options, learning rates, memory, geometry of the noise scale.

    Example: cbs optimizers muon --workload text

    Example: cbs optimizers --libraries
    """
    if not names and (workload or settings):
        raise ConfigError("--workload and --set need the names of optimizers, as in: cbs optimizers muon")
    if settings and not workload:
        raise ConfigError("--set needs --workload, as in: cbs optimizers muon --workload text --set muon.matrices=all")
    if names and libraries:
        raise ConfigError("--libraries lists all there are; give it without names")
    with errors.status("counting the state of each optimizer"):
        from cbs.optimizers import OPTIMIZERS
        from cbs.trial.config import Choice
        from sweeps.recipes import RECIPES
        from sweeps.spec import catalogue
        from sweeps.spec.overrides import override

        entries = catalogue.catalogue(names)
        if libraries:
            ours = set(OPTIMIZERS.names())
            further = [name for name in OPTIMIZERS.more_names() if "." not in name or name.split(".")[1] in ours]
            entries += catalogue.catalogue(further, measured=False)
        routings = {}
        if names and workload:
            asked = RECIPES.make("default").replace(
                optimizers=tuple(Choice(name=name) for name in names), workload=Choice(name=workload)
            )
            routings = catalogue.routed(override(asked, settings or ()))
    if as_json:
        shown = [entry.to_json() for entry in entries]
        for row in shown:
            if row["name"] in routings:
                routes = routings[row["name"]].routes
                row["routing"] = {
                    each.name: {"part": catalogue.part_of(each.is_matrix), "why": each.reason} for each in routes
                }
        typer.echo(json.dumps(shown, indent=2, allow_nan=False))
        return
    out = console()
    if not names:
        out.print(catalogue.overview(entries))
        return
    for index, entry in enumerate(entries):
        out.print(*([""] if index else []), catalogue.details(entry), sep="\n")
        if entry.spec.name in routings:
            out.print("", catalogue.routing_table(routings[entry.spec.name]), sep="\n")
