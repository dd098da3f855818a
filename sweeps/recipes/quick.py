"""Quick: a first answer in minutes, from sequences of 16 bytes and an easier target."""

from __future__ import annotations

from cbs.trial.config import Choice
from cbs.trial.target import Target
from sweeps.recipes import RECIPES
from sweeps.spec.axes import Axes
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import Sweep, prototype


@RECIPES.register("quick")
def quick() -> Sweep:
    """Embedded text, the default model on 16 bytes, target 2.6 nats/byte; five batch sizes, two seeds.

    A sequence of 16 bytes halves the price of an example, and of an evaluation. The warmup is in examples: ten updates,
    as in the default, cost AdamW 8 % of its steps at B = 256, a floor under the curve that batch size cannot lower.
    """
    return Sweep(
        name="quick",
        trial=prototype(
            workload=Choice(name="text", options={"context": 16}),
            target=Target(metric="validation_loss", value=2.6),
            micro_batch_size=128,
        ),
        axes=Axes(optimizers=(Choice(name="adamw"),), batch_sizes=(4, 16, 64, 128, 256), seeds=(0, 1)),
        max_steps=400,
        max_examples=12_000,
        schedule=ScheduleRule(warmup_examples=256),
        expected=(100.0, 4_500.0),
        usual_precision=0.35,
    )
