"""Presentation of every type of result, one file each; found by the type, see :mod:`analysis.present`."""
