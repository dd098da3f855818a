"""The plane of ``analysis.estimate.time_curves``, pair by pair."""

from collections.abc import Sequence


def undominated_by_pairs(devices: Sequence[float], seconds: Sequence[float]) -> list[bool]:
    """Whether no other point is at least as good in both and better in one."""
    points = list(zip(devices, seconds, strict=True))
    return [
        not any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points)
        for point in points
    ]
