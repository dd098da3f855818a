"""Hugging Face Trainer: none (huggingface/transformers, issue 31222, open). ``gradient_accumulation_steps`` counts the
batches of an epoch before it begins, so that changing it on the way moves the steps at which gradients are applied."""

from __future__ import annotations

from analysis.read.trainers import TRAINERS, Trainer


@TRAINERS.register("transformers")
class Transformers(Trainer):
    """Refuses."""

    refusal = (
        "the Trainer of transformers has no batch-size schedule (its issue 31222): run each stage of the table as "
        "a run of its own from the checkpoint of the one before, or use a loop of your own"
    )
