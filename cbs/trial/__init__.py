"""A trial and what it leaves behind: configuration, target, record, checkpoint."""
