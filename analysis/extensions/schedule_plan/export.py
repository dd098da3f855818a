"""Write a plan in the format of a trainer."""

from __future__ import annotations

from analysis.extensions.schedule_plan.plans import SchedulePlans
from analysis.extensions.schedule_plan.trainers import ScheduleExport, trainer_named, write_schedule
from analysis.phrases import number
from cbs.errors import ConfigError


def exported(plans: SchedulePlans, trainer: str) -> tuple[str, list[str]]:
    """Return a plan as text in the format of a trainer, and remarks; raise ``ConfigError`` if there are several plans,
    the trainer is unknown, or it cannot run the plan."""
    if len(plans.plans) != 1:
        names = ", ".join(plan.source.optimizer for plan in plans.plans)
        raise ConfigError(f"--export takes one plan, and there are those of {names}: choose with --optimizer")
    (plan,) = plans.plans
    export = ScheduleExport(
        table=tuple(plan.table),
        steps=tuple(stage.steps for stage in plan.stages),
        examples=plan.budget,
        tokens_per_example=plan.source.tokens_per_example,
        optimizer=plan.source.optimizer.partition("(")[0],
        lr_factors=tuple(stage.lr_factor for stage in plan.stages),
    )
    text = write_schedule(trainer, export)
    notes = [plan.verdict, *plan.notes]
    factors = [stage.lr_factor.value for stage in plan.stages]
    if plan.stages[0].lr.value is not None:
        notes.append(f"learning rate of the first stage: {number(plan.stages[0].lr.value)}, {plan.lr_rule}")
    if not trainer_named(trainer).carries_lr and None not in factors and set(factors) != {1.0}:
        pairs = zip(factors, plan.stages, strict=True)
        listed = ", ".join(f"{number(factor)} at {stage.batch_size}" for factor, stage in pairs)
        notes.append(f"{trainer} takes no factor of the learning rate with it; the plan's are {listed}")
    return text, notes
