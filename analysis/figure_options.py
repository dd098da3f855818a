"""What the curves of figures are called, and whether panels have titles: as the author of a paper has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from cbs.errors import ConfigError
from cbs.registry.choices import split

# Width of a figure of one panel where the page has one column: a figure of the whole width would be a page high
_NARROW = 3.25


class Venue(NamedTuple):
    """The page of a venue.

    Attributes:
        text: width of the text, inches; of figures with several panels.
        column: width of one column, inches; ``text`` where the page has one column.
    """

    text: float
    column: float

    @property
    def single(self) -> float:
        """Width of a figure of one panel."""
        return self.column if self.column < self.text else min(self.text, _NARROW)


# By name; every width is that of the venue's own style file
VENUES = {
    "default": Venue(6.75, 3.25),  # as icml
    "icml": Venue(6.75, 3.25),  # icml2025.sty: \textwidth 6.75in, \columnsep 0.25in, two columns
    "neurips": Venue(5.5, 5.5),  # neurips_2023.sty: textwidth=5.5in, one column
    "iclr": Venue(5.5, 5.5),  # iclr2024_conference.sty: \textwidth 5.5 true in, one column
    "acl": Venue(16 / 2.54, 7.7 / 2.54),  # acl.sty: a4paper, margin=2.5cm, so a text of 16 cm; \columnsep 0.6cm
    "jmlr": Venue(6.0, 6.0),  # jmlr2e.sty: \textwidth 6.0 true in, one column
    "talk": Venue(4.4, 4.4),  # a slide shows it three times as large, and its letters with it
    "ieee": Venue(43 * 12 / 72.27, 21 * 12 / 72.27),  # IEEEtran.cls: \textwidth 43pc = 2 x 21pc + 1pc of 12/72.27 inch
}

DEFAULT = VENUES["default"]


def venue_named(name: str) -> Venue:
    """The venue of this name; a ``ConfigError`` if there is none."""
    if name not in VENUES:
        near = get_close_matches(name.lower(), VENUES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown venue {name!r}; {hint}known: {', '.join(VENUES)}")
    return VENUES[name]


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
            raise ConfigError(
                f"--figures {unknown[0]}: no curve has that name; there are: {', '.join(curves) or 'none'}"
            )
        shown: dict[str, str] = {}
        for name in curves:
            other = shown.setdefault(self.names.get(name, name), name)
            if other != name:
                raise ConfigError(f"--figures would call both {other} and {name} {self.names.get(name, name)!r}")

    def named(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with the names that are shown; a cell may hold several on lines of their own."""
        if not self.names:
            return table

        def renamed(cell: Any) -> Any:
            lines = cell.split("\n") if isinstance(cell, str) else ()
            return "\n".join(self.names.get(line, line) for line in lines) if lines else cell

        texts = table.select_dtypes(include=["object", "string"]).columns
        return table.assign(**{column: table[column].map(renamed) for column in texts})


AS_STORED = FigureLabels()


def parse_figures(text: str) -> tuple[str | None, FigureLabels]:
    """``neurips,adamw=AdamW,titles=no`` as the name of a page width, ``None`` for no figures, and the labels.

    Within brackets commas and equals signs are part of a name, as in ``adamw(betas=[0.9, 0.95])=AdamW``.

    Raises:
        ConfigError: if there is no such width, or a part is not NAME=SHOWN.
    """
    width, *parts = split(text, text)
    if len(split(width, width, "=")) > 1:
        width, parts = "default", [width, *parts]
    names: dict[str, str] = {}
    for part in parts:
        name, *rest = split(part, part, "=")
        name, shown = name.strip(), "=".join(rest).strip()
        if not shown:
            raise ConfigError(f"--figures {part.strip()!r} must be NAME=SHOWN, as in --figures neurips,adamw=AdamW")
        if name in names:
            raise ConfigError(f"--figures {name} is given twice")
        names[name] = shown
    titles = names.pop("titles", "yes")
    if titles not in ("yes", "no"):
        raise ConfigError(f"--figures titles={titles}: yes or no")
    width = width.strip()
    if width != "none":
        venue_named(width)
    return None if width == "none" else width, FigureLabels(names=names, titles=titles == "yes")
