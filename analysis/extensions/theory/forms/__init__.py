"""Further forms of the loss, in addition to those of the core, one per file."""
