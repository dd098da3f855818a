"""``cbs recommend``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import (
    AnswerWriter,
    Asked,
    ResultsPath,
    answer_with,
    asked_of,
    level_of,
    options,
    times_of,
)
from analysis.config import AnalysisConfig
from cbs.errors import ConfigError

PANEL = "Decide"


@options(asked=asked_of, times=times_of, config=level_of, answer=answer_with)
def command(
    results: ResultsPath = Path("results"),
    devices: Annotated[int, typer.Option(help="Largest number of devices to use.")] = 1,
    *,
    asked: Asked,
    times: Any,
    price: Annotated[float | None, typer.Option(help="Price of a device-hour. Default: that of the table.")] = None,
    price_ratio: Annotated[
        float | None, typer.Option(help="Device-hours that finishing an hour sooner is worth.")
    ] = None,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """Which batch size to train with: least time, cost or data.

    It also says what twice the devices gain.

    Example: cbs recommend results/ --target 2.4 --devices 8 --throughput throughput.csv

    Example: cbs recommend results/ --throughput 'assumed(examples_per_second_per_device=2000)'
    """
    from extensions.recommending.plans import Wish
    from extensions.recommending.recommendations import recommend

    if times is None:
        measured = f"a table, such as 'cbs throughput {results}' writes where trials are trained here"
        assumed = "'assumed(examples_per_second_per_device=X)' with what you measured"
        raise ConfigError(f"--throughput is missing: {measured}, or {assumed}")
    wish = Wish(devices=devices, price=price, price_ratio=price_ratio)
    recommendations = recommend(results, times, wish, config, targets=asked.targets, metric=asked.metric)
    answer(recommendations, results / "analysis" / "recommend")
