"""A table as a LaTeX ``tabular`` for the booktabs package, all text escaped.

By hand: the Styler of pandas does the same, and loading it takes longer than a whole analysis of a small sweep.
"""

from __future__ import annotations

from analysis.present.table import Table

_ESCAPED = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "∞": r"$\infty$", "–": "--"}
)


def latex(table: Table) -> str:
    """Everything there is to see, below a comment that holds the title."""
    table = table.shown(wide=True)
    headings = [column.latex or column.heading.translate(_ESCAPED) for column in table.columns]
    cells = [[" ".join(filter(None, cell)).translate(_ESCAPED) for cell in row] for row in table.cells()]
    first, *rest = (" & ".join(row) + r" \\" for row in (headings, *cells))
    letters = "".join("l" if column.left or column.name else "r" for column in table.columns)
    lines = [rf"\begin{{tabular}}{{{letters}}}", r"\toprule", first, r"\midrule", *rest, r"\bottomrule"]
    return "\n".join([f"% {table.title}", *lines, r"\end{tabular}"]) + "\n"
