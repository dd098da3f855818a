"""torchtitan: none. Accumulation is computed once, from ``training.num_tokens_per_train_step`` (trainer.py, 2026)."""

from __future__ import annotations

from analysis.read.trainers import TRAINERS, Trainer


@TRAINERS.register("torchtitan")
class Torchtitan(Trainer):
    """Refuses."""

    refusal = (
        "torchtitan has no batch-size schedule: training.num_tokens_per_train_step is read once, at the start; run "
        "each stage of the table as a run of its own from the checkpoint of the one before"
    )
