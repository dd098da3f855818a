"""What is asked for: a sweep, its cells, axes, overrides and the flags that say them."""
