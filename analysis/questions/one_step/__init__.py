"""What one step saves at its best length, against the batch size."""
