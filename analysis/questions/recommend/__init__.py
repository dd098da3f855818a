"""Recommend a batch size to train with: least time, cost or data."""
