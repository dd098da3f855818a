"""Forms of the loss beside that of the core, one per file."""
