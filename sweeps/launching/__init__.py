"""Sweeps from start to end: launching one, policies that choose the next one, listing results, merging folders."""
