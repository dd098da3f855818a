"""Sweeps from start to end: launching one, going on by itself, adding up what was spent, merging."""
