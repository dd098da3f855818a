"""``cbs scale``."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.command_options import AnswerWriter, Targets, answer_with, config_of, errors, options
from analysis.config import AnalysisConfig


@options(config=config_of, answer=answer_with)
def command(
    results: Annotated[list[Path], typer.Argument(help="Sweeps, or folders of sweeps.")],
    against: Annotated[
        list[str] | None, typer.Option(help="data, parameters, loss or compute; repeat. Default: all that vary.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Compare along this with all else equal: an option of the workload (width, layers) or one of the "
            "above; repeat. Default: every option that varies.",
        ),
    ] = None,
    hold_data: Annotated[
        list[float] | None, typer.Option(metavar="D", help="Compare also at equal data (tokens) instead of equal loss.")
    ] = None,
    at: Annotated[
        list[float] | None, typer.Option(help="Predict at this value of the quantity given by --against; repeat.")
    ] = None,
    data_at_batch: Annotated[
        float | None,
        typer.Option(help="Batch size at which data, the examples to target, are counted. Default: the critical one."),
    ] = None,
    target: Targets = None,
    *,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """How B_crit scales with data, model size, loss and compute.

    Fits power laws, and compares sweeps that differ in one thing alone.

    Example: cbs scale results/ --target 2.6 --target 2.4 --against data --at 1e9

    Example: cbs scale results/small results/large --against parameters
    """
    from extensions.scale.scaling import scale

    with errors.status("fitting"):
        scaling = scale(
            results,
            config,
            against=against,
            vary=vary,
            hold_data=hold_data,
            at=at,
            data_at_batch=data_at_batch,
            targets=target or None,
        )
    answer(scaling, results[0] / "analysis" / "scaling")
