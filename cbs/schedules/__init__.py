"""Schedules of a run: of the learning rate and of the batch size, and gradient accumulation that follows them."""
