"""Figures of ``cbs schedule``."""
