"""The learning rate: its law over batch sizes, and what the way it is chosen does to the critical batch size."""

PANEL = "Analyze"
