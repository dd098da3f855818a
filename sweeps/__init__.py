"""Turn a sweep into trials and run them on Ray Tune."""

__distribution__ = "critical-batch-size"
