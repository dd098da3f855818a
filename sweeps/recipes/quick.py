"""Quick: a first answer in a minute or two, at an easier target and with one seed."""

from __future__ import annotations

from cbs.config import Choice
from cbs.target import Target
from sweeps.recipes import RECIPES
from sweeps.spec import Sweep


@RECIPES.register("quick")
def quick() -> Sweep:
    """Eight batch sizes up to 128 sequences, one seed, target 2.8 nats/byte."""
    return Sweep(
        name="quick",
        workload=Choice(name="text"),
        optimizers=(Choice(name="adamw"),),
        batch_sizes=(1, 2, 4, 8, 16, 32, 64, 128),
        seeds=(0,),
        target=Target(metric="validation_loss", value=2.8),
        max_steps=1_000,
        max_examples=30_000,
        micro_batch_size=128,
        expected=(100.0, 1_500.0),
    )
