"""Diagnostics of layers, one file each."""
