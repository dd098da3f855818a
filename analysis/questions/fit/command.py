"""``cbs fit``."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.command_options import AsJson, Wide, config_of, options, pairs, tell
from analysis.config import AnalysisConfig


@options(config=config_of)
def command(
    table: Annotated[
        str, typer.Argument(help="CSV, TSV or Parquet with columns batch_size and steps; - reads a pipe.")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="OURS=THEIRS where a column has another name: steps=my_steps; repeat for several."),
    ] = None,
    unit: Annotated[str | None, typer.Option(help="What batch_size counts: sequences, tokens, images.")] = None,
    *,
    config: AnalysisConfig,
    figure: Annotated[Path | None, typer.Option(help="Also draw the fits: a .pdf or .png file.")] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Critical batch size from a table of batch sizes and steps.

    Steps to target, such as those of a paper's table. Optional columns: optimizer, group, seed, lr, target,
    censored (steps is a lower bound), tokens_per_example.

    Example: cbs fit steps.csv --unit sequences --definition 'overhead(reference_batch=256)'

    Example: cbs fit steps.csv --figure steps.pdf
    """
    from analysis.present.figures import save_figure
    from analysis.questions.fit.table_fit import fit_table

    fit = fit_table(table, config, columns=pairs("--column", column, "OURS=THEIRS"), unit=unit)
    tell(fit, save_figure(fit, figure), as_json=as_json, wide=wide)
