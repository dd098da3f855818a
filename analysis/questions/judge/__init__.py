"""What batch schedules bought: their runs against the constant batch sizes run beside them."""
