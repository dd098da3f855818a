"""``cbs schedule plan``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import AnswerWriter, answer_with, errors, level_of, options, times_of
from analysis.config import AnalysisConfig
from cbs.errors import ConfigError
from cbs.registry import listed

TRAINERS = listed("extensions.schedules.trainers")


@options(times=times_of, config=level_of, answer=answer_with)
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RESULTS_OR_FILE",
            help="A sweep, or a folder of sweeps; noise_scale.json of cbs noise-scale, or steps.parquet of a trial; a "
            "table of examples, critical_batch_size, batch_size [, low, high], as of cbs local; or an existing "
            "schedule, to see its steps: where each stage begins and its batch size, '0:768 250B:1536 500B:3072', or "
            f"what a trainer takes ({TRAINERS}), as text or the name of a file.",
            show_default=True,
        ),
    ] = "results",
    target: Annotated[
        list[float] | None,
        typer.Option(help="Loss that ends a phase; repeat. Default: those at 1/8, 1/4 and 1/2 of a run, and its last."),
    ] = None,
    ratio: Annotated[float, typer.Option(help="With noise scales: critical batch size over noise scale.")] = 1.0,
    optimizer: Annotated[str | None, typer.Option(help="Optimizer to plan for. Default: all.")] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="How batch sizes are chosen: 'price(step_price=1000)', with the examples that saving one step is "
            "worth (default: least time where step times are known, else the critical batch size), or "
            "'doubling(first_batch_size=64)'."
        ),
    ] = "price",
    max_batch_size: Annotated[int | None, typer.Option(help="Largest batch size of the plan.")] = None,
    divisible_by: Annotated[
        int | None,
        typer.Option(
            help="Every batch size is a multiple of this: data-parallel ranks times examples per micro-batch. Default: "
            "what divides all measured batch sizes."
        ),
    ] = None,
    lr_exponent: Annotated[
        str | None,
        typer.Option(
            help="Power of the batch size that the learning rate is proportional to (0, 0.5, 1), or law for the "
            "measured law. Default: 0 where the sweep's learning rate is constant, 1 where it decays."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="End of the run, in tokens if examples have them, else in examples: 750B, 1.5M. Default: the last "
            "loss."
        ),
    ] = None,
    tokens_per_example: Annotated[
        int | None, typer.Option(help="Tokens in an example, if the results do not say.")
    ] = None,
    devices: Annotated[int, typer.Option(help="Devices that share a step.")] = 1,
    export: Annotated[
        str | None,
        typer.Option(help=f"Print only the schedule, in the format of a trainer: {TRAINERS}."),
    ] = None,
    *,
    times: Any,
    config: AnalysisConfig,
    answer: AnswerWriter,
) -> None:
    """Batch sizes that grow with the critical one, their learning rates, and what they will take.

    For a table of stages: how many steps it takes, and what it saves against a constant batch size.

    Example: cbs schedule plan results/ --divisible-by 32 --export megatron

    Example: cbs schedule plan '0:1024 168B:2048 503B:4096' --budget 608B --tokens-per-example 4096
    """
    from extensions.schedules.plan.of_trace import is_trace
    from extensions.schedules.plan.planning import plan_schedule, sources
    from extensions.schedules.plan.plans import LAW, PlanRequest, rule_of
    from extensions.schedules.plan.stages import is_table, stages
    from extensions.schedules.trainers import exported

    if is_table(source):
        planning = {
            "--target": target, "--optimizer": optimizer,
            "--max-batch-size": max_batch_size, "--divisible-by": divisible_by,
            "--lr-exponent": lr_exponent, "--export": export, "--throughput": times, "--ratio": ratio != 1.0,
            "--rule": rule != "price", "--devices": devices != 1,
            "options of the intervals": config != AnalysisConfig(),
        }  # fmt: skip
        if given := [flag for flag, value in planning.items() if value]:
            raise ConfigError(
                f"{', '.join(given)}: does not apply to a table of stages, where nothing is planned; leave it out"
            )
        answer(stages(source, budget, tokens_per_example=tokens_per_example), None)
        return
    plan_sources, end = sources(
        source, config, targets=target or None, ratio=ratio, optimizer=optimizer, budget=budget,
        tokens_per_example=tokens_per_example,
    )  # fmt: skip
    try:
        power = LAW if lr_exponent == "law" else None if lr_exponent is None else float(lr_exponent)
    except ValueError:
        raise ConfigError(f"--lr-exponent must be law, or a number between -1 and 1, got {lr_exponent}") from None
    ask = PlanRequest(
        **rule_of(rule), throughput=times, devices=devices, divisible_by=divisible_by, max_batch_size=max_batch_size,
        lr_exponent=power, budget=end,
    )  # fmt: skip
    swept = not (is_trace(source) or Path(source).is_file())
    plans = plan_schedule(plan_sources, ask, config, folder=source if swept else "")
    if export is None:
        answer(plans, Path(source) / "analysis" / "schedule_plan" if swept else None)
        return
    text, notes = exported(plans, export)
    for note in notes:
        errors.print(note, markup=False, soft_wrap=True)
    typer.echo(text, nl=False)
