"""How the best learning rate depends on the batch size."""
