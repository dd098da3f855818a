"""Parts of the workload of masked text."""
