"""Turn a sweep into trials and run them on Ray."""

__distribution__ = "critical-batch-size"
