"""``cbs fit``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from analysis.commands import (
    AsJson,
    Confidence,
    DefinitionName,
    Definitions,
    Overhead,
    ReferenceBatch,
    Resamples,
    Tolerance,
    Wide,
    config_of,
    console,
)
from cbs.errors import ConfigError


def command(
    table: Annotated[
        str, typer.Argument(help="CSV, TSV or Parquet with columns batch_size and steps; - reads a pipe.")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="OURS=THEIRS where a column has another name: steps=my_steps; repeat for several."),
    ] = None,
    unit: Annotated[str | None, typer.Option(help="What batch_size counts: sequences, tokens, images.")] = None,
    definition: DefinitionName = "pareto",
    overhead: Overhead = None,
    reference_batch: ReferenceBatch = None,
    tolerance: Tolerance = None,
    confidence: Confidence = 0.95,
    resamples: Resamples = 2000,
    figure: Annotated[Path | None, typer.Option(help="Also draw the fits: a .pdf or .png file.")] = None,
    definitions: Definitions = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Critical batch size from a table of batch sizes and steps to target, such as one from a paper.

    Optional columns: optimizer, group, seed, lr, target, censored (steps is a lower bound), tokens_per_example.

    Example: cbs fit steps.csv --unit sequences --definition overhead --reference-batch 256
    """
    from analysis import present
    from analysis.questions.fit_table import fit_table

    config = config_of(definition, overhead, reference_batch, confidence, resamples, tolerance)
    found = fit_table(table, config, columns=_pairs(column or []), unit=unit)
    if figure is not None:
        from analysis.present.results.analysis import save_figure

        save_figure(found, figure)
    files = [] if figure is None else [figure]
    if as_json:
        typer.echo(json.dumps(present.to_json(found, files=files), indent=2, allow_nan=False))
    else:
        present.show(found, console(), wide=wide, definitions=definitions, files=files)


def _pairs(given: list[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise ConfigError(f"--column takes OURS=THEIRS, such as steps=my_steps, got {pair!r}")
        found[ours.strip()] = theirs.strip()
    return found
