"""``cbs import``."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AsJson, errors, pairs
from cbs.registry import listed
from cbs.registry.commands import command_line

PANEL = "Bring your data"


def command(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="Files, folders, or entity/project of Weights & Biases."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the sweep, such as results/mine.")
    ] = None,
    format: Annotated[str, typer.Option(help=f"{listed('analysis.read.importers')}. auto: detected.")] = "auto",
    metric: Annotated[str | None, typer.Option(help="Name of the metric in the source.")] = None,
    direction: Annotated[str | None, typer.Option(help="Which side of the target is better: below or above.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Default target of later analyses; curves are kept whole.")
    ] = None,
    metric_unit: Annotated[str | None, typer.Option(help="Unit of the metric, such as nats/token.")] = None,
    example_unit: Annotated[str | None, typer.Option(help="What one example is, such as sequence.")] = None,
    tokens_per_example: Annotated[int | None, typer.Option(help="Tokens in an example.")] = None,
    batch_unit: Annotated[str, typer.Option(help="Unit of the batch sizes: examples or tokens.")] = "examples",
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="OURS=THEIRS", help="Name of a column, or config.KEY, in the source. Repeatable."),
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Fact that holds for all runs, e.g. optimizer=adamw. Repeatable."
        ),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Table with a column run, and batch_size, optimizer, lr, seed of each.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help='Names of the runs, e.g. "{optimizer}-b{batch_size}-lr{lr}-s{seed}".')
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Formats with studies of trials: use the first N per batch size.")
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD=STATUS", help="What a word of the column status means. Repeatable."),
    ] = None,
    examples_per_epoch: Annotated[int | None, typer.Option(help="For curves against epochs: their examples.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Add to an import of the same metric, target and units.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn training curves of other tools into a sweep folder.

    The other commands read it like one that was trained here.

    Example: cbs import runs.csv -o results/mine --metric val_loss --direction below --target 3.2
    --metric-unit nats/token --example-unit sequence

    Example: cbs import logs -o results/tb --format tensorboard --pattern 'b{batch_size}-lr{lr}' --set optimizer=adamw
    """
    given: dict[str, Any] = locals().copy()  # many are settings of the same name
    with errors.status("starting"):
        from analysis.read.importers import Settings, import_runs
        from analysis.read.importers.settings import ask_for, missing

    absent = [flag for flag, value in (("SOURCE", sources), ("-o FOLDER", output)) if not value] + missing(**given)
    if not sources or output is None or absent:
        raise ask_for(absent)
    statuses = {word.upper(): meant.upper() for word, meant in pairs("--status", status).items()}
    given |= {"columns": pairs("--column", column), "constants": pairs("--set", constant), "statuses": statuses}
    settings = Settings(**{each.name: given[each.name] for each in fields(Settings)})
    if errors.is_terminal:  # without a spinner, because wandb may ask for a login
        errors.print(f"reading {', '.join(sources)}", markup=False)
    imported = import_runs(sources, output, settings, format=format, add=add, command=command_line())
    if as_json:
        typer.echo(json.dumps(imported.to_json(), indent=2, allow_nan=False))
    else:
        typer.echo("\n".join(imported.lines()))
