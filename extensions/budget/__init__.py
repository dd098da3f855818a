"""Losses of runs of equal length: up to which batch size they are as good as the best."""

PANEL = "Analyze"
