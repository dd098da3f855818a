"""What predictions of theory start from.

Example: cbs theory spectrum results/quick
"""

PANEL = "Extensions"
