"""What theory says of critical batch sizes: noisy quadratics, the loss of a run."""
