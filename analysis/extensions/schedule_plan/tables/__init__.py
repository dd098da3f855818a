"""Presentation of ``cbs schedule plan``, one file per type of result."""
