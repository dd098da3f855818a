"""What ``cbs schedule plan`` writes and prints, one file per type of result."""
