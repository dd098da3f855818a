"""Comparisons of ``analysis.questions.compare.answer`` and the plane of ``analysis.estimate.time_curves``, pair by
pair."""

from __future__ import annotations

from collections.abc import Sequence


def exceeds_by_pairs(first: Sequence[float], second: Sequence[float]) -> float:
    """Share of pairs in which the first is the larger; equal ones count half."""
    score = 0.0
    for one in first:
        for two in second:
            score += 1.0 if one > two else 0.5 if one == two else 0.0
    return score / (len(first) * len(second))


def undominated_by_pairs(devices: Sequence[float], seconds: Sequence[float]) -> list[bool]:
    """Whether no other point is at least as good in both and better in one."""
    points = list(zip(devices, seconds, strict=True))
    return [
        not any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points)
        for point in points
    ]
