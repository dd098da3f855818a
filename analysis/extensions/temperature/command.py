"""``cbs temperature``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.options import Answer, answer_with, level_of, options


@options(config=level_of, answer=answer_with)
def command(
    results: Annotated[list[Path], typer.Argument(help="Sweeps, or folders of sweeps, to a budget and with a probe.")],
    *,
    config: Any,
    answer: Answer,
) -> None:
    """Noise scale against learning rate and batch size.

    By McCandlish et al. (2018) it goes as 1/T, the temperature T being learning rate over batch size.

    Example: cbs temperature results/
    """
    from analysis.extensions.temperature.answer import temperature

    answer(temperature(*results, config=config), results[0] / "analysis" / "temperature")
