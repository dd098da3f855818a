"""Branches from checkpoints of a run, with several batch sizes, and the local critical batch size that they tell."""
