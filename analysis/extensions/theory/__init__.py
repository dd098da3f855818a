"""What theory says of critical batch sizes: noisy quadratics."""
