"""Read results, never train: critical batch sizes, noise scales, tables and figures.

Data flows one way: ``read``, ``estimate`` and ``questions``, which ``present`` prints and writes.
``from analysis import analyze, fit``: the main question about a folder of results, and about a table in memory or in a
file; in a notebook an answer shows its table and its figures.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.present.findings import Analysis
    from analysis.questions.analyze.critical_batch_sizes import analyze
    from analysis.questions.fit.table_fit import fit_table as fit

__distribution__ = "critical-batch-size"
__all__ = ["Analysis", "analyze", "fit"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are asked for: pandas and scipy take most of a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "fit":
        from analysis.questions.fit.table_fit import fit_table

        return fit_table
    import analysis.questions.analyze.critical_batch_sizes as question

    return getattr(question, name)
