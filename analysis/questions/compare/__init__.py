"""Optimizers side by side: token ratios, and whose critical batch size is the larger."""
