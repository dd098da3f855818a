"""Sweeps from start to end: launching one, policies that choose the next, listing what ran, merging."""
