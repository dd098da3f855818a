"""Presentation of ``cbs theory``, one file per type of result."""
