"""What the curves of figures are called, and whether panels have titles: as the author of a paper has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cbs.errors import ConfigError
from cbs.registry.choices import split

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class FigureLabels:
    """Names and titles of figures; the tables behind them keep the names of the results.

    Attributes:
        names: what is shown in place of the name of a curve.
        titles: whether panels have titles.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    titles: bool = True

    def check(self, tables: Iterable[pd.DataFrame]) -> None:
        """Refuse names of curves that none of the tables has, and two curves under one name.

        Raises:
            ConfigError: then.
        """
        if not self.names:
            return
        curves = list(dict.fromkeys(name for table in tables if "optimizer" in table for name in table["optimizer"]))
        if unknown := [name for name in self.names if name not in curves]:
            raise ConfigError(f"--names {unknown[0]}: no curve has that name; there are: {', '.join(curves) or 'none'}")
        shown: dict[str, str] = {}
        for name in curves:
            other = shown.setdefault(self.names.get(name, name), name)
            if other != name:
                raise ConfigError(f"--names would call both {other} and {name} {self.names.get(name, name)!r}")

    def named(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with the names that are shown; a cell may hold several on lines of their own."""
        if not self.names:
            return table

        def renamed(cell: Any) -> Any:
            lines = cell.split("\n") if isinstance(cell, str) else ()
            return "\n".join(self.names.get(line, line) for line in lines) if lines else cell

        texts = table.select_dtypes(include=["object", "string"]).columns
        return table.assign(**{column: table[column].map(renamed) for column in texts})


PLAIN = FigureLabels()


def parse_names(texts: Sequence[str]) -> dict[str, str]:
    """``adamw=AdamW,merit=MERIT`` as a dictionary; a name may be given once.

    Within brackets commas and equals signs are part of a name, as in ``adamw(betas=[0.9, 0.95])``.

    Raises:
        ConfigError: if a part is not NAME=SHOWN.
    """
    names: dict[str, str] = {}
    for part in (part for text in texts for part in split(text, text)):
        name, *rest = split(part, part, "=")
        name, shown = name.strip(), "=".join(rest).strip()
        if not shown:
            raise ConfigError(f"--names {part.strip()!r} must be NAME=SHOWN, as in --names adamw=AdamW,merit=MERIT")
        if name in names:
            raise ConfigError(f"--names {name} is given twice")
        names[name] = shown
    return names
