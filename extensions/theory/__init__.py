"""Theoretical predictions about critical batch sizes: noisy quadratics."""
