"""Read results, never train: critical batch sizes, noise scales, tables and figures.

``from analysis import analyze`` is the whole of it; ``analyze(path)`` returns a :class:`~analysis.report.Report`.
"""

from __future__ import annotations

from analysis.report import Report, analyze

__distribution__ = "critical-batch-size"
__all__ = ["Report", "analyze"]
