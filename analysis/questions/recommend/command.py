"""``cbs recommend``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.config import AnalysisConfig
from analysis.options import Answer, ResultsPath, Targets, answer_with, level_of, options, times_of
from cbs.errors import ConfigError

PANEL = "Decide"


@options(times=times_of, config=level_of, answer=answer_with)
def command(
    context: typer.Context,
    results: ResultsPath = Path("results"),
    devices: Annotated[int, typer.Option(help="Largest number of devices to use.")] = 1,
    target: Targets = None,
    *,
    times: Any,
    probe: Annotated[
        bool, typer.Option("--probe", help="Instead of a table of cbs throughput: time a few steps on this machine.")
    ] = False,
    code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE.MODULE:NAME",
            help="With --probe: custom workload or optimizer, named in the results, that is allowed to run. Repeats.",
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a device-hour. Default: that of the table.")] = None,
    price_ratio: Annotated[
        float | None, typer.Option(help="Device-hours that finishing an hour sooner is worth.")
    ] = None,
    config: AnalysisConfig,
    answer: Answer,
) -> None:
    """Which batch size to train with: least time, cost or data.

    And what twice the devices buy.

    Example: cbs recommend results/ --target 2.4 --devices 8 --throughput throughput.csv
    """
    from analysis.questions.recommend.answer import recommend
    from analysis.questions.recommend.plans import Wish
    from analysis.read.throughput import StepTimeTable

    if (times is not None) == probe:
        raise ConfigError("give either --throughput or --probe")
    if code and not probe:
        raise ConfigError("--code needs --probe: nothing else runs what the results name")
    wish = Wish(devices=devices, price=price, price_ratio=price_ratio)
    if probe:
        times = StepTimeTable(tuple(context.obj(str(results), code or ())), "a short run on this machine")
    recommendations = recommend(results, times, wish, config, targets=target or None)
    answer(recommendations, results / "analysis" / "recommend")
