"""Schedules of a run: of the learning rate and of the batch size."""
