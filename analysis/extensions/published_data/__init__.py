"""Data that papers published, as sweeps: a format each for ``cbs import``."""
