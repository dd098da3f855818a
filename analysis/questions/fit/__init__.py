"""Estimate a critical batch size from a table of batch sizes and steps."""
