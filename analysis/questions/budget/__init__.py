"""Equal budgets: the final metric against the batch size, and up to where a larger batch costs nothing."""
