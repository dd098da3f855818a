"""What combines with what: one table of what excludes and what needs what, from which every such refusal follows.

Whatever a user asks for has a name, the option that asks for it. A policy has rows of its own, see
:class:`sweeps.launching.policies.Policy`.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from cbs.errors import ConfigError
from cbs.trial.config import COMMAND
from sweeps.spec.spec import Sweep


class Rule(NamedTuple):
    """A row of the table.

    Attributes:
        one: what is asked for.
        other: what does not go with it, or what it needs.
        why: the reason in words.
    """

    one: str
    other: str
    why: str


EXCLUDED = (
    Rule("--budget", "--set target.METRIC", "trials with a budget stop at no target"),
    Rule("--budget", "--max-runs", "it counts runs at the critical batch size, which needs a target"),
    Rule("--schedule", "--from-checkpoint", "a batch schedule begins with the run"),
    Rule("--set policy", "--precision", "the policy says how the sweep goes on"),
    Rule("--set policy", "--max-runs", "the policy says how the sweep goes on"),
    Rule("--set gpu_hour", "--set device=cpu", "trials on the processor take no hours of a GPU"),
    Rule("--command", "--schedule", "the program gets a constant batch size"),
    Rule("--command", "--workload", "the program has its own model and data"),
    Rule(
        "--command",
        "--workers-per-trial",
        "the program starts its workers itself, as torchrun does, on --gpus-per-trial and --set cpus_per_trial",
    ),
    Rule("--gpus-per-trial", "--set device=cpu", "trials on the processor would hold GPUs that they do not use"),
    Rule("--launch", "--gpus-per-trial", "its line says what the job gets, as in 'sbatch --wait --gpus 1'"),
    Rule("--launch", "--set nodes_per_trial", "its line says what the job gets"),
    Rule("--watch", "--clean", "it shows what there is, again and again"),
    Rule("--watch", "--json", "it shows a screen, and JSON is printed once"),
)
"""Pairs of which a command has at most one."""

NEEDED = (
    Rule("--set within", "--budget", "it is a difference of the metric at equal budgets"),
    Rule("--max-runs", "--precision", "it ends a sweep that goes on to a precision"),
    Rule("--launch", "--command", "it starts the program as a job"),
    Rule("--set nodes_per_trial", "--address", "they are nodes of a Ray cluster"),
    Rule("--set nodes_per_trial", "--command", "a model trained by cbs has its workers on one node"),
    Rule("--set shard", "--workers-per-trial", "it splits a model over the workers of a trial"),
    *(
        Rule(flag, "--command", "it is about the program that trains")
        for flag in [
            "--reads",
            "--direction",
            "--metric-unit",
            "--example-unit",
            "--tokens-per-example",
            "--column",
            "--resume",
        ]
    ),
)
"""What needs something else."""


def asked_for(sweep: Sweep) -> set[str]:
    """Return the names of what a sweep asks for."""
    axes, search = sweep.axes, sweep.search
    asked = {
        "--lrs": axes.lrs is not None,
        "--lrs RULE": axes.lr_rule is not None,
        "--axis": bool(axes.tuned),
        "--schedule": any(schedule is not None for _, schedule in axes.curves.values()),
        "--budget": bool(axes.budgets),
        "--set target.METRIC": bool(sweep.trial.further_targets),
        "--set search=grid": search.method == "grid",
        "--set within": search.within is not None,
        "--from-checkpoint": sweep.start.parent is not None and sweep.start.trunk is None,
        "--set device=cpu": sweep.trial.device == "cpu",
        "--command": sweep.trial.workload.name == COMMAND,
    }
    return {name for name, given in asked.items() if given}


def refuse(
    asked: Collection[str],
    excluded: Iterable[Rule] = EXCLUDED,
    needed: Iterable[Rule] = NEEDED,
    remedy: str = "leave one of the two out",
) -> None:
    """Check what was asked for against rows of the table.

    Args:
        asked: names of what was asked for.
        excluded, needed: the rows.
        remedy: what to do about two that do not combine.

    Raises:
        ConfigError: if two of it do not combine, or something else is missing.
    """
    for one, other, why in excluded:
        if one in asked and other in asked:
            raise ConfigError(f"{one} does not go with {other}: {why}; {remedy}")
    for one, other, why in needed:
        if one in asked and other not in asked:
            raise ConfigError(f"{one} needs {other}: {why}; give both, or leave {one} out")
