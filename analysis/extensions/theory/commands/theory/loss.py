"""``cbs theory loss``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.config import AnalysisConfig
from analysis.consoles import errors
from analysis.options import AsJson, Wide, level_of, options, pairs, tell


@options(config=level_of)
def command(
    table: Annotated[
        str, typer.Argument(help="CSV, TSV or Parquet with columns N, B, K and loss, one row per run; - reads a pipe.")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="OURS=THEIRS where a column has another name: N=parameters; repeat for several."),
    ] = None,
    holdout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS[:FROM]",
            help="Leave out the largest runs along N, B, K, D = B K or C = 6 N B K, those FROM a value on (D:1e9) or "
            "about a quarter, and predict them; repeat. Default: N and D.",
        ),
    ] = None,
    at: Annotated[
        list[str] | None, typer.Option(metavar="N,B,K", help="Predict the loss of this run: 1e9,512,20000; repeat.")
    ] = None,
    size: Annotated[
        list[float] | None,
        typer.Option(help="Model size N to give the critical batch size of; repeat. Default: the largest measured."),
    ] = None,
    target: Annotated[
        list[float] | None, typer.Option(help="Loss to reach; repeat. Default: the median loss of the largest size.")
    ] = None,
    *,
    config: AnalysisConfig,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write tables, figures and JSON to. Default: none.")
    ] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Loss of a run from model size N, batch size B and steps K.

    The noisy quadratic system (Li and Maddison 2026). It is fitted beside the forms of Chinchilla and of Kaplan,
    and all of them have to predict the largest runs from the others. Optional columns: lr (the best one of every N,
    B and K is kept) and run (rows read from the same run).

    Example: cbs theory loss runs.csv --holdout N --holdout D:1e9 --at 1e9,512,20000 -o predicted

    Example: cbs theory loss runs.csv --json
    """
    from analysis import present
    from analysis.extensions.theory.loss import losses

    renamed = pairs("--column", column, "OURS=THEIRS")
    with errors.status("fitting"):
        answer = losses(table, config, columns=renamed, holdouts=holdout, at=at or (), sizes=size, targets=target)
    tell(answer, present.write(answer, output) if output else (), as_json=as_json, wide=wide)
