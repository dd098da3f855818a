"""``cbs theory bounds``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.config import AnalysisConfig
from analysis.consoles import errors
from analysis.options import Answer, Targets, answer_with, config_of, options
from cbs.errors import ConfigError


def constants_of(
    optim: Annotated[
        list[str] | None, typer.Option(help="Without results: sgd, momentum or muon; repeat for several.")
    ] = None,
    beta: Annotated[str | None, typer.Option(help="Momenta: 0.9 or 0.8,0.9,0.95. Default: 0.95.")] = None,
    weight_decay: Annotated[str | None, typer.Option(help="Decoupled weight decays: 0,0.1. Default: 0.")] = None,
    nesterov: Annotated[
        bool | None,
        typer.Option("--nesterov/--no-nesterov", help="Nesterov momentum. Default: yes for muon, no for momentum."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Gradient norm to reach; with weight decay, excess loss to reach.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Length of a step in the norm; for sgd the learning rate.")] = None,
    smoothness: Annotated[float | None, typer.Option(help="L, Lipschitz constant of the gradient.")] = None,
    noise: Annotated[float | None, typer.Option(help="sigma, standard deviation of an example's gradient.")] = None,
    gap: Annotated[float | None, typer.Option(help="Excess loss at the start.")] = None,
    initial_gradient: Annotated[
        float | None, typer.Option(help="Norm of the gradient at the start. Default: at most sqrt(2 L gap).")
    ] = None,
    norm_constant: Annotated[
        float | None, typer.Option(help="Constant D of the norm. Default: 1, that of the Euclidean norm.")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Batch sizes to evaluate steps at: 4,64 or 1..65536. Default: 1..1048576.")
    ] = None,
) -> dict[str, Any]:
    """What was given, by name."""
    return {name: value for name, value in locals().items() if value is not None and value != []}


@options(constants=constants_of, config=config_of, answer=answer_with)
def command(
    results: Annotated[
        Path | None, typer.Argument(help="A sweep, or a folder of sweeps. Default: constants.", show_default=False)
    ] = None,
    target: Targets = None,
    form: Annotated[
        str | None,
        typer.Option(help="Fit this form to every optimizer: root, linear, decay. Default: that of its bound, if any."),
    ] = None,
    at_lr: Annotated[
        float | None, typer.Option(help="Use this learning rate at all batch sizes, as the bounds assume.")
    ] = None,
    *,
    constants: dict[str, Any],
    config: AnalysisConfig,
    answer: Answer,
) -> None:
    """Upper bounds on the steps, beside what was measured.

    Of Sato, Naganuma and Iiduka (2025): batch size of fewest examples, and which predictions hold.

    Example: cbs theory bounds results/ --at-lr 0.008

    Example: cbs theory bounds --optim muon --beta 0.9,0.95 --epsilon 0.5 --lr 0.001 --smoothness 1 --noise 5 --gap 3
    """
    if results is not None:
        if constants:
            named = ", ".join(_flag(name) for name in constants)
            raise ConfigError(f"{named}: constants are given instead of results, not beside them")
        from analysis.extensions.theory.bounds.measured import measured_bounds

        with errors.status("fitting"):
            bounds = measured_bounds(results, config, targets=target or None, form=form, lr=at_lr)
        answer(bounds, results / "analysis" / "bounds")
        return
    if form is not None or at_lr is not None or target or config != AnalysisConfig():
        raise ConfigError(
            "--form, --at-lr, --target and options of the intervals are about measured steps: name results"
        )
    answer(_given(**constants), None)


def _given(
    *,
    optim: list[str] | None = None,
    beta: str = "0.95",
    weight_decay: str = "0",
    nesterov: bool | None = None,
    batch_sizes: str = "1..1048576",
    **constants: float,
) -> Any:
    from analysis.extensions.theory.bounds.given import given_bounds
    from cbs.registry.parsing import parse_batch_sizes, parse_numbers
    from cbs.theory.steps_bounds import BoundConstants

    missing = [name for name in ("epsilon", "lr", "smoothness", "noise", "gap") if name not in constants]
    if missing or not optim:
        flags = ", ".join(_flag(name) for name in ([] if optim else ["optim"]) + missing)
        raise ConfigError(f"name a folder of results, or all constants of a bound: missing {flags}")
    try:
        problem = BoundConstants(**constants)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return given_bounds(
        problem,
        optim,
        betas=parse_numbers(beta, "--beta", float),
        weight_decays=parse_numbers(weight_decay, "--weight-decay", float),
        nesterov=nesterov,
        batch_sizes=parse_batch_sizes(batch_sizes),
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
