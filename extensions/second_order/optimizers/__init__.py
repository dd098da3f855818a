"""Optimizers with curvature, one file each."""
