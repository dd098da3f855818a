"""Read results, never train: critical batch sizes, noise scales, tables and figures.

Data flows one way: ``read``, ``estimate``, ``questions``, ``present``, ``commands``.
``from analysis import analyze`` asks the main question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.questions.analyze import Report, analyze

__distribution__ = "critical-batch-size"
__all__ = ["Report", "analyze"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for: pandas and scipy take most of a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import analysis.questions.analyze as report

    return getattr(report, name)
