"""Lengths of time as a person reads them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A length of time in the two units a person would use."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
