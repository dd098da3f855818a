"""Theoretical predictions about critical batch sizes: noisy quadratics, the loss of a run, upper bounds on the
steps."""
