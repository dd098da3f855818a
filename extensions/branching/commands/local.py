"""``cbs local``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AnswerWriter, answer_with, errors, level_of, options

PANEL = "Analyze"


@options(config=level_of, answer=answer_with)
def command(
    results: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders with branches of checkpoints, and of sweeps from the start to compare with."),
    ] = None,
    within: Annotated[
        float, typer.Option(help="Excess loss up to which a branch is as good, in the unit of the metric.")
    ] = 0.01,
    noise_share: Annotated[
        float,
        typer.Option(help="The same as a fraction of a loss's deviation over seeds; the larger of the two counts."),
    ] = 0.5,
    *,
    config: Any,
    answer: AnswerWriter,
) -> None:
    """Local critical batch size along a run, from branches.

    For every checkpoint, with an interval, beside the noise scale and the published rule; and the time average.

    Example: cbs local results/ --within 0.01 --noise-share 0.5

    Example: cbs local results/ --json
    """
    from extensions.branching.local_batch_sizes import local

    paths = results or [Path("results")]
    with errors.status("drawing"):
        found = local(*paths, config=config, within=within, noise_share=noise_share)
    folder = paths[0] / "analysis" / "local"
    answer(found.written_to(answer.output or folder), folder)
