"""Equal budgets: the final metric against the batch size, and up to which batch size a larger one costs nothing."""
