"""One training run: the loop, its parts, and its measurements."""
