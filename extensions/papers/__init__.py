"""Experiments of papers as recipes: their sweeps, and a verdict on every statement of the paper.

A recipe asks the commands and names the optimizers that it needs, also those of other extensions; one whose command is
not there says so.
"""

PANEL = "Measure"
