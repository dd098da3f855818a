"""Widths of the pages that figures go to: a figure drawn for its venue needs no scaling, so its text keeps its size."""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple

from cbs.errors import ConfigError

_NARROW = 3.25
"""Width of a figure of one panel where the page has one column: a figure of the whole width would be a page high."""


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
"""By name; every width is that of the venue's own style file."""

DEFAULT = VENUES["default"]


def venue_named(name: str) -> Venue:
    """The venue of this name; a ``ConfigError`` if there is none."""
    if name not in VENUES:
        near = get_close_matches(name.lower(), VENUES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown venue {name!r}; {hint}known: {', '.join(VENUES)}")
    return VENUES[name]
