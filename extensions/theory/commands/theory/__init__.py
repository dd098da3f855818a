"""Predictions of theory, alone or beside what was measured.

Example: cbs theory quadratic --optim sgd --optim momentum

Example: cbs theory temperature results/
"""
