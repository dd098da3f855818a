"""What batch schedules end at when their examples are spent, beside the batch size that they start from."""
