"""Estimates with intervals from results that have been read; nothing here does any input or output."""
