"""``cbs theory quadratic``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AsJson, Wide, config_of, options, progress, tell
from analysis.config import AnalysisConfig


@options(config=config_of)
def command(
    optim: Annotated[
        list[str] | None,
        typer.Option(
            help="sgd, momentum, nesterov or ema (an average of SGD's iterates); repeat for several. Default: sgd, "
            "momentum and ema."
        ),
    ] = None,
    power: Annotated[
        str,
        typer.Option(
            help="Exponents p of a preconditioner h^-p: 0 for none, 0.5 as in Adam, 1 as in Newton's method: 0,0.5."
        ),
    ] = "0",
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="Batch sizes: 4,64 or 4..65536 for powers of two, the default."),
    ] = None,
    target: Annotated[float | None, typer.Option(help="Expected loss to reach. Default: 0.01.")] = None,
    momentum: Annotated[
        str | None, typer.Option(help="Momenta of momentum and nesterov, one curve each: 0.9,0.99. Default: tuned.")
    ] = None,
    ema: Annotated[
        str | None, typer.Option(help="Decays of the average, one curve each: 0.9,0.99. Default: tuned.")
    ] = None,
    pieces: Annotated[
        int,
        typer.Option(
            help="Also the best learning rate of SGD over a run, constant on each of this many pieces (50 in the "
            "paper); --figure then draws it."
        ),
    ] = 0,
    dimension: Annotated[int, typer.Option(help="Number of parameters.")] = 10_000,
    spectrum_power: Annotated[float, typer.Option(help="The i-th curvature is i to minus this power.")] = 1.0,
    noise: Annotated[float, typer.Option(help="Variance of an example's gradient noise over the curvature.")] = 1.0,
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            help="Only steps, computed as in the authors' notebook: curvatures in 100 bins, settings on its grids.",
        ),
    ] = False,
    *,
    config: AnalysisConfig,
    figure: Annotated[Path | None, typer.Option(help="Also draw the curves: a .pdf or .png file.")] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Which optimizers gain from large batches, in theory.

    Predicted by the noisy quadratic model (Zhang et al. 2019).

    Example: cbs theory quadratic --optim sgd --optim momentum --power 0,0.5 --figure nqm.pdf

    Example: cbs theory quadratic --as-published
    """
    from analysis.config import AnalysisConfig
    from analysis.present.figures import save_figure
    from cbs.errors import ConfigError
    from cbs.registry.values import parse_batch_sizes, parse_numbers
    from extensions.theory.noisy_quadratic import NoisyQuadratic
    from extensions.theory.quadratic import as_notebook, quadratic

    fitted = {
        "--momentum": momentum is not None, "--ema": ema is not None,
        "--spectrum-power": spectrum_power != 1.0, "--noise": noise != 1.0, "--figure": figure is not None,
        "--pieces": pieces != 0, "options of the intervals": config != AnalysisConfig(),
    }  # fmt: skip
    if as_published and (given := [flag for flag, there in fitted.items() if there]):
        raise ConfigError(f"{' and '.join(given)}: --as-published takes this from the notebook; leave it out")
    if dimension < 1 or dimension > 10_000_000:
        raise ConfigError(f"--dimension must be between 1 and 10,000,000, got {dimension}")
    if pieces != 0 and not 2 <= pieces <= 1000:
        raise ConfigError(f"--pieces must be from 2 to 1,000, got {pieces}; leave it out for constant rates alone")
    asked: dict[str, Any] = {
        "optimizers": optim or ("sgd", "momentum", "ema"),
        "batch_sizes": parse_batch_sizes(batch_sizes or "4..65536"),
        "powers": parse_numbers(power, "--power", float),
        "target": 0.01 if target is None else target,
    }
    if as_published:
        tell(as_notebook(**asked, dimension=dimension), (), as_json=as_json, wide=wide)
        return
    try:
        model = NoisyQuadratic.power_law(dimension, power=spectrum_power, noise=noise).grouped()
    except ValueError as error:
        raise ConfigError(f"the noisy quadratic cannot be made: {error}") from None
    with progress("predicting the curves (seconds to minutes)") as update:
        answer = quadratic(
            **asked,
            momenta=parse_numbers(momentum, "--momentum", float) if momentum else (None,),
            decays=parse_numbers(ema, "--ema", float) if ema else (None,),
            pieces=pieces,
            model=model,
            config=config,
            progress=lambda row: update(f"{row.optimizer} at batch size {row.batch_size:g}"),
        )
    if pieces and not answer.schedules:
        raise ConfigError(f"no run takes more than {pieces} steps: ask for fewer --pieces, or smaller batch sizes")
    drawn = save_figure(answer, figure, "quadratic_rates") if pieces else save_figure(answer.fit, figure)
    tell(answer, drawn, as_json=as_json, wide=wide)
