"""The local critical batch size, estimated from the final losses of the branches of a checkpoint."""
