"""How the best learning rate follows the batch size."""
