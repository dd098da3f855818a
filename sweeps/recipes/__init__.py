"""Recipes: functions that return a whole sweep."""

from collections.abc import Callable

from cbs.registry import Registry
from cbs.trial.config import Choice
from cbs.trial.target import Target
from sweeps.spec.axes import Axes
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import Sweep, prototype

RECIPES: Registry[Callable[[], Sweep]] = Registry("recipe", "sweeps.recipes", makes=Sweep)

__all__ = ["RECIPES"]


@RECIPES.register("default")
def default() -> Sweep:
    """Eight batch sizes up to 512 sequences, three seeds, target 2.4 nats/byte."""
    return Sweep(
        name="default",
        trial=prototype(
            workload=Choice(name="text"), target=Target(metric="validation_loss", value=2.4), micro_batch_size=128
        ),
        axes=Axes(optimizers=(Choice(name="adamw"),), batch_sizes=(4, 8, 16, 32, 64, 128, 256, 512), seeds=(0, 1, 2)),
        max_steps=2_000,
        max_examples=80_000,
        expected=(200.0, 8_000.0),
    )


@RECIPES.register("quick")
def quick() -> Sweep:
    """Embedded text, the default model on 16 bytes, target 2.55 nats/byte; five batch sizes, two seeds.

    A sequence of 16 bytes halves the price of an example, and of an evaluation. The warmup is in examples: ten updates,
    as in the default, cost AdamW 8 % of its steps at B = 256, a floor under the curve that batch size cannot lower.
    """
    return Sweep(
        name="quick",
        trial=prototype(
            workload=Choice(name="text", options={"context": 16}),
            target=Target(metric="validation_loss", value=2.55),
            micro_batch_size=128,
        ),
        axes=Axes(optimizers=(Choice(name="adamw"),), batch_sizes=(4, 16, 64, 128, 256), seeds=(0, 1)),
        max_steps=400,
        max_examples=12_000,
        schedule=ScheduleRule(warmup_examples=256),
        expected=(120.0, 4_800.0),
        usual_precision=0.35,
    )
