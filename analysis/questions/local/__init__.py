"""The local critical batch size: along one run, from branches of its checkpoints."""
