"""``cbs theory spectrum``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.consoles import errors
from sweeps.commands import AsJson


def command(
    results: Annotated[Path, typer.Argument(help="Folder of one sweep.")],
    optim: Annotated[
        str | None,
        typer.Option(
            "--optim",
            help="Optimizer whose trials lead to the target. Default: the alphabetically first. "
            "Naming package.module:name allows that code to run.",
        ),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Needed where the sweep's workload is custom code, package.module:name.")
    ] = None,
    at: Annotated[
        list[str] | None, typer.Option("--at", help="Point to measure at: start, target. Repeats. Default: both.")
    ] = None,
    curvature: Annotated[
        str,
        typer.Option(
            help="gauss_newton or hessian. auto: gauss_newton where the workload provides the model's outputs."
        ),
    ] = "auto",
    nodes: Annotated[int, typer.Option(help="Lanczos steps: points of every spectral measure.")] = 32,
    replicates: Annotated[int, typer.Option(help="Measurements at each point; intervals come from their spread.")] = 4,
    curvature_examples: Annotated[int, typer.Option(help="Examples to compute the curvature on.")] = 256,
    gradient_examples: Annotated[int, typer.Option(help="Examples to compute the gradient and its noise on.")] = 8192,
    as_json: AsJson = False,
) -> None:
    """Measure the spectrum that cbs theory quadratic predicts a sweep from.

    Curvature of the sweep's model, and gradient and noise along it.

    Example: cbs theory spectrum results/quick --optim adamw --at start --at target

    Example: cbs theory spectrum results/ --curvature hessian
    """
    from rich.progress import Progress

    from cbs.spectrum.measure import Effort
    from cbs.spectrum.record import write
    from sweeps.measuring.spectrum import POINTS, measure_spectrum, summary

    effort = Effort(
        curvature=curvature,
        nodes=nodes,
        curvature_examples=curvature_examples,
        gradient_examples=gradient_examples,
    )
    points = tuple(dict.fromkeys(at or POINTS))
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("training", total=len(points) * max(replicates, 0) * effort.vectors)
        found = measure_spectrum(
            results,
            optimizer=optim,
            workload=workload,
            points=points,
            replicates=replicates,
            effort=effort,
            progress=lambda what: bar.update(task, advance=1, description=what),
        )
    file = write(found, results)
    rows = summary(found)
    if as_json:
        report: dict[str, Any] = {"file": str(file), "curvature": found.curvature, "trial": found.trial}
        typer.echo(json.dumps(report | {"parameters": found.parameters, "points": rows}, indent=2, allow_nan=False))
        return
    typer.echo(f"{found.curvature.replace('_', '-')} matrix of {found.parameters:,} parameters, {found.nodes} nodes")
    for row in rows:
        numbers = ", ".join(
            f"{name.replace('_', ' ')} {entry['mean']:.4g}" + (f" ± {entry['error']:.2g}" if entry["error"] else "")
            for name, entry in row["quantities"].items()
        )
        typer.echo(f"{row['point']} (step {row['step']}, {found.metric} {row['value']:.4g}): {numbers}")
    typer.echo(file)
