"""What ``cbs theory`` writes and prints, one file per type of result."""
