"""Figures of ``cbs theory``, one file per kind."""
