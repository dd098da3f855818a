"""The final loss of batch schedules when their examples are spent, compared with constant batch sizes."""
