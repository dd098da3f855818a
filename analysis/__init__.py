"""Read results, never train: critical batch sizes, noise scales, tables and figures.

``from analysis import analyze`` is the whole of it; ``analyze(path)`` returns a :class:`~analysis.report.Report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.report import Report, analyze

__distribution__ = "critical-batch-size"
__all__ = ["Report", "analyze"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for: pandas and scipy take most of a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import analysis.report as report

    return getattr(report, name)
