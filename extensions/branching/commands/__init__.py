"""Commands on branches of a run."""
