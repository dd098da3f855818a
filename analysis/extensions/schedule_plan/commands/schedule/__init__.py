"""Batch-size schedules: which to run.

Example: cbs schedule plan results/
"""
