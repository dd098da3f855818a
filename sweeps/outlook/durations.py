"""Format lengths of time for reading."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Format a length of time in one or two convenient units."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
