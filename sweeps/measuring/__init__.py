"""Measurements that train only a little: step times, the noise scale of a workload."""
