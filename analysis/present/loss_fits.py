"""Table of the parameters of fitted forms of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.estimate.laws.loss import LossFit
from analysis.present.table import Column, Table, files


def parameters(
    fits: Mapping[str, LossFit], title: str = "", lines: Sequence[str] = (), *, key: str = "form", asked: str = ""
) -> Table:
    """Return a table with one row per fit and parameter; the name of the fit is in a column ``key``."""
    rows = [
        ({key: name, "parameter": symbol, "value": one.values[symbol], "interval": ends}, one)
        for name, one in fits.items()
        for symbol, ends in one.intervals.items()
    ]
    columns = (
        *files(key),
        Column("parameter", heading="parameter", name=True),
        Column("value", heading="value", interval="interval", ends=("low", "high")),
        *files("residual_rms", "runs", "groups"),
    )
    return Table(columns=columns, rows=rows, title=title, lines=lines, asked=asked)


def limits(one: LossFit) -> list[str]:
    """Return lines that say which parameters the runs do not determine."""
    lines = [f"not separated by these runs: {', '.join(one.loose)}"] if one.loose else []
    ends = [symbol for symbol, value in one.values.items() if value is None and symbol not in one.loose]
    if ends:
        lines.append(f"at an end of the range of the search, so only bounded: {', '.join(ends)}")
    return lines
