"""A table as a LaTeX ``tabular`` for the booktabs package, all text escaped."""

from __future__ import annotations

import pandas as pd

from analysis.present.table import Table

_BEYOND_PANDAS = {"<": r"\textless{}", ">": r"\textgreater{}", "∞": r"$\infty$", "–": "--"}


def latex(table: Table) -> str:
    """Everything there is to see, below a comment that holds the title."""
    table = table.shown(wide=True)
    cells = [[" ".join(filter(None, cell)) for cell in row] for row in table.cells()]
    headings = [column.latex or column.heading.replace("_", r"\_").replace("%", r"\%") for column in table.columns]
    frame = pd.DataFrame(cells, columns=headings, dtype=object)
    letters = "".join("l" if column.left or column.name else "r" for column in table.columns)
    text = frame.style.hide(axis="index").format(escape="latex").to_latex(hrules=True, column_format=letters)
    for character, command in _BEYOND_PANDAS.items():
        text = text.replace(character, command)
    return f"% {table.title}\n{text}"
