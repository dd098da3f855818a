"""``cbs branch``."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.command_options import errors, options
from sweeps.commands import panel
from sweeps.commands.sweep import output_flags, program_flags, resource_flags, sweep_flags

PANEL = "Measure"


def trunk_flags(
    trunk_batch: Annotated[int, typer.Option(help="Batch size of the trunk.")] = 16,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of the trunk. Default: the middle of the optimizer's grid.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="EXAMPLES", help="Length of the trunk: 1e5, '64M tokens'.")
    ] = None,
    from_checkpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH@EXAMPLES", help="Checkpoint of your own run, instead of a trunk. Repeatable."),
    ] = None,
    trunk_optim: Annotated[
        str | None, typer.Option(help="Start the branches of all optimizers from the trunk of this one.")
    ] = None,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())


def branch_flags(
    at: Annotated[
        str, typer.Option(help="Where branches begin: percentages of the trunk, or numbers of examples.")
    ] = "5%,10%,20%,40%,80%",
    factors: Annotated[str, typer.Option(help="Batch sizes as multiples k of the trunk's.")] = "1/4,1/2,1,2,4,8,16",
    window: Annotated[
        str | None,
        typer.Option(metavar="EXAMPLES", help="Examples of a branch, or a percentage of the trunk: 20k, 2%."),
    ] = None,
    lr_rule: Annotated[
        str, typer.Option(metavar="RULE", help="sqrt or linear in k, tried (0.5, 1, 2 times sqrt), or 16:1e-3,32:2e-3.")
    ] = "sqrt",
    seeds: Annotated[str, typer.Option(help="Seeds of a branch, at most, or a list; --error 0 runs them all.")] = "5",
    error: Annotated[
        float,
        typer.Option(help="Error probability of the sequential test, which decides what runs; 0 runs everything."),
    ] = 0.1,
    within: Annotated[
        float, typer.Option(help="Excess loss up to which a branch is as good in that test, in the unit of the metric.")
    ] = 0.01,
) -> dict[str, Any]:
    """Return the given options by the names of the parameters."""
    return dict(locals())


@options(
    asked=panel("The trunk", sweep_flags, only=("optim", "recipe", "workload", "settings")),
    trunk=panel("The trunk", trunk_flags),
    branches=panel("The branches", branch_flags),
    program=panel("Your own training program", program_flags),
    machines=panel("Where it runs", resource_flags),
    shown=panel("Output", output_flags),
)
def command(
    context: typer.Context,
    *,
    asked: dict[str, Any],
    trunk: dict[str, Any],
    branches: dict[str, Any],
    program: dict[str, Any],
    machines: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    """Branch from checkpoints of one run, at several batch sizes.

    Trains the run, keeps checkpoints, and continues from each for a short window with k times the batch size. Given
    again, the same command runs only what is missing.

    Example: cbs branch --optim adamw --budget 1e5 --dry-run

    Example: cbs branch --optim adamw --optim muon --budget 1e5 --factors 1,4,16
    """
    began = time.monotonic()
    with errors.status("starting"):
        from cbs.errors import ConfigError
        from cbs.registry.values import parse_seeds
        from extensions.branching.policies import OF_BRANCHES, Branch
        from sweeps.external.asked import asked_sweep
        from sweeps.launching.train import train
        from sweeps.recipes import RECIPES
        from sweeps.running.resources import Resources
        from sweeps.spec.overrides import split

    run_settings, asked["settings"] = split(asked["settings"] or ())
    if given := run_settings.keys() & {"policy", "gpu_hour"}:
        raise ConfigError(f"--set {' and '.join(sorted(given))}: this is of 'cbs sweep' alone; leave it out")
    of_branch, asked["settings"] = split(asked["settings"], OF_BRANCHES)
    checkpoints, lr = trunk["from_checkpoint"] or [], trunk["lr"]
    seeds = parse_seeds(branches.pop("seeds"))
    asked |= {
        "batch_sizes": str(trunk["trunk_batch"]),
        "lrs": None if lr is None else repr(lr),
        "seeds": ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else ""),
        "budget": (branches["window"] or "1e9") if checkpoints and trunk["budget"] is None else trunk["budget"],
        "from_checkpoint": Path(checkpoints[0].rpartition("@")[0] or checkpoints[0]) if checkpoints else None,
    }
    policy = Branch(
        **branches,
        trunk_optimizer=trunk["trunk_optim"] or "",
        checkpoints=checkpoints,
        state=of_branch.get("parent.optimizer", "keep"),
        warmup=of_branch.get("parent.warmup_examples", 0),
    )
    recipe = RECIPES.make(asked["recipe"]).replace(name="branch")
    sweep = asked_sweep(recipe, asked, program)
    train(sweep, recipe, policy, Resources(**machines, **run_settings), shown, context=context, began=began)
