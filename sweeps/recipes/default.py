"""The default: the embedded text down to 2.4 nats per byte, three seeds."""

from __future__ import annotations

from cbs.trial.config import Choice
from cbs.trial.target import Target
from sweeps.recipes import RECIPES
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype


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
