"""One training run: the loop, its parts, and what it measures."""
