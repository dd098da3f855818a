"""From the losses at the end of branches of one checkpoint to the local critical batch size."""
