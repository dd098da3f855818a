"""What one step saves at its best length, by batch size."""
