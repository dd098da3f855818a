"""Quick: a first answer in minutes, at an easier target, with few batch sizes and two seeds."""

from __future__ import annotations

from cbs.trial.config import Choice
from cbs.trial.target import Target
from sweeps.recipes import RECIPES
from sweeps.spec.spec import Sweep


@RECIPES.register("quick")
def quick() -> Sweep:
    """Five batch sizes up to 512 sequences, two seeds, target 2.8 nats/byte."""
    return Sweep(
        name="quick",
        workload=Choice(name="text"),
        optimizers=(Choice(name="adamw"),),
        batch_sizes=(2, 8, 32, 128, 512),
        seeds=(0, 1),
        target=Target(metric="validation_loss", value=2.8),
        max_steps=1_000,
        max_examples=30_000,
        micro_batch_size=128,
        expected=(100.0, 1_500.0),
    )
