"""Which batch size to train with on how many devices, from the curve and from step times."""
