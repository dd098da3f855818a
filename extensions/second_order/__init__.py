"""Optimizers that use the curvature of the loss: Gauss-Newton and Sophia."""
