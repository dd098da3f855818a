"""Measurements that need little training: step times, the noise scale of a workload, the spectrum of the curvature."""
