"""Figures, defined in the folders of questions and found by name; each computes a tidy table first, then draws it.

A figure is saved as PDF and PNG, and the table behind it as CSV of the same name. A figure whose table is empty is not
drawn.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.figure_options import AS_STORED, DEFAULT, FigureLabels, Venue
from cbs.errors import ConfigError
from cbs.files import atomic_file
from cbs.registry import Registry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Largest number of optimizers whose curves can be distinguished in one panel
TOGETHER = 6

# Largest number of panels of a figure, about a page; a panel takes as long to draw as a hundred runs to read
MOST_PANELS = 12

# Largest number of parts of a result that are drawn where nobody asked for figures, of more the first, which takes as
# long as all else for a hundred runs; and number of panels of a figure there that has no room for all.
UNASKED = 4

FORMATS = (".pdf", ".png")  # File formats in which every figure is written


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """A figure of one type of result.

    Attributes:
        of: class of the results it is drawn from.
        name: name of its files, if it differs from the name under which it is registered.
        compute: function from a part of such a result, see :func:`parts`, to the tidy table that is drawn; an empty
            table if there is nothing to draw. For an analysis, a part is the answers of one sweep, workload and target.
        draw: function that draws a table on axes.
        panel: column that has the title of a row's panel; ``draw`` then receives one panel at a time.
        frame: function that sets scales, limits and labels of a panel from the whole table before it is drawn, so that
            all panels have the same axes.
        columns: largest number of panels side by side.
        whole: whether it is drawn once, from all answers of an analysis, where others are drawn from each of its parts.
        main: whether it is drawn where nobody asks for figures, too.
        apart: whether more than :data:`TOGETHER` optimizers get a panel each, with the curves of the others in the
            background. ``draw`` then finds rows of kind ``fit`` of the others as kind ``other``, with the name in
            ``other_of``, and their points as kind ``beyond``, which only set the limits.
        marks: function from a table to labelled artists that explain the marks, below the panels.
        title: a few words; for analyses, whose figures appear on a page.
        caption: what is seen; for analyses. Names of columns in braces are replaced by values of the table's first row;
            ``percent`` is its confidence.
    """

    of: type
    compute: Callable[[Any], pd.DataFrame]
    draw: Callable[[Axes, pd.DataFrame], None]
    name: str = ""
    panel: str = ""
    frame: Callable[[Axes, pd.DataFrame], None] | None = None
    columns: int = 3
    whole: bool = False
    main: bool = True
    apart: bool = False
    marks: Callable[[pd.DataFrame], list[Line2D]] | None = None
    title: str = ""
    caption: str = ""

    def figure(
        self, table: pd.DataFrame, page: Venue = DEFAULT, labels: FigureLabels = AS_STORED, *, asked: bool = True
    ) -> Figure:
        """Return the whole figure of ``table``, for the page width of a venue; fewer panels where nobody ``asked``."""
        from analysis.present import style

        with style.style():
            table = labels.named(table)
            apart = self.apart and table["optimizer"].nunique() > TOGETHER
            by = "optimizer" if apart else self.panel
            every = [part for _, part in table.groupby(by, sort=False)] if by else [table]
            most = MOST_PANELS if asked or len(every) <= MOST_PANELS else UNASKED
            panels = every if apart else every[:most]
            height = style.LOW_PANEL if apart else style.PANEL_HEIGHT
            figure, axes = style.grid(len(panels), page, columns=self.columns, height=height)
            titles = [str(part[by].iloc[0]) if by else "" for part in panels]
            titles = style.wrapped_apart(titles, style.size(axes[0])[0] + 0.1, 8, lines=3)
            for place, part, title in zip(axes, panels, titles, strict=True):
                if self.frame:
                    self.frame(place, table)
                self.draw(place, _among_others(part, table) if apart else part)
                if by and (labels.titles or len(panels) > 1):  # of several, a title says which is which
                    place.set_title(style.literal(title))
                cell = place.get_subplotspec()
                if cell and not cell.is_first_col() and place.get_ylabel() == axes[0].get_ylabel():
                    place.set_ylabel("")
            if apart:
                figure.supylabel(axes[0].get_ylabel().replace("\n", " "), fontsize=8)
                across = axes[0].get_gridspec().ncols  # type: ignore[union-attr]
                for place, other in itertools.zip_longest(axes, axes[across:]):
                    place.set(ylabel="", xlabel="" if other else place.get_xlabel())
            marks = self.marks(table) if self.marks else []
            if marks:
                style.below(figure, marks)
            if len(every) > len(panels):
                words = f"{len(panels)} of {len(every)} panels; the CSV file of this figure has the points of all"
                figure.suptitle(words, fontsize=8)
        return figure

    def said(self, table: pd.DataFrame) -> str:
        """Return the caption of the figure of ``table``."""
        row = table.iloc[0].to_dict()
        percent = f"{100 * row.get('confidence', 0.95):g} %"
        return self.caption.format(**row | {"target": row.get("target", "").replace("_", " "), "percent": percent})


def _among_others(own: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one optimizer with those of the others as background, see :attr:`FigureKind.apart`; without a
    second axis in tokens, for which many panels have no room."""
    others = table[~table.index.isin(own.index) & ~table["kind"].isin(["hyperbola", "near"])]
    kinds = np.where(others["kind"] == "fit", "other", "beyond")
    others = others.assign(kind=kinds, other_of=others["optimizer"], optimizer=own["optimizer"].iloc[0])
    return pd.concat([own, others], ignore_index=True).assign(tokens_per_example=np.nan)


FIGURES: Registry[FigureKind] = Registry(
    "figure", "analysis.present.figures", folders="analysis.questions", instance_of=FigureKind
)


def figure(name: str, /, **about: Any) -> Callable[[Callable[[Axes, pd.DataFrame], None]], FigureKind]:
    """Return a decorator that registers the :class:`FigureKind` of a drawing function with the attributes ``about``."""
    return lambda draw: FIGURES.register(name)(FigureKind(draw=draw, **about))


class Picture(NamedTuple):
    """One figure: the name of its files, its kind, and the table that is drawn."""

    name: str
    kind: FigureKind
    table: pd.DataFrame

    def write(
        self, folder: Path, page: Venue = DEFAULT, labels: FigureLabels = AS_STORED, *, asked: bool = True
    ) -> list[Path]:
        """Write the figure in every format and the table as CSV into ``folder``, creating it; return the files."""
        from analysis.present import style

        folder.mkdir(parents=True, exist_ok=True)
        drawn = self.kind.figure(self.table, page, labels, asked=asked)
        files = [folder / f"{self.name}{suffix}" for suffix in (*FORMATS, ".csv")]
        for file in files[:-1]:
            style.save_as(drawn, file)
        self.table.to_csv(files[-1], index=False)
        return files


def figures_of(result: Any, *, every: bool = True) -> Iterator[Picture]:
    """Yield the figures that have something to draw: every one, or only the main ones of :data:`UNASKED` parts."""
    list(FIGURES)  # imports all figures: their files register into which parts results are divided
    found = [*parts(result)]
    several = sum(not part.whole for part in found) <= UNASKED
    for part in found if every else found[: UNASKED if several else 1]:
        yield from pictures(type(result), part.drawn, part.suffix, whole=part.whole, every=every)


def pictures(of: type, part: Any, suffix: str = "", *, whole: bool = False, every: bool = True) -> Iterator[Picture]:
    """Yield the figures of one part of a result of this class, or those of the ``whole`` analysis; ``suffix`` is
    appended to their names."""
    for name, kind in ((name, FIGURES[name]) for name in FIGURES):
        wanted = issubclass(of, kind.of) and kind.whole is whole and (every or kind.main)
        if wanted and len(table := kind.compute(part)):
            yield Picture(f"{kind.name or name}{suffix}", kind, table)


class FigurePart(NamedTuple):
    """What figures are drawn from: all of a result or a part, the suffix of their names, and whether figures that are
    drawn only once are drawn from it, see :attr:`FigureKind.whole`."""

    drawn: Any
    suffix: str = ""
    whole: bool = False


@singledispatch
def parts(result: Any) -> Iterable[FigurePart]:
    """Return the parts of a result that figures are drawn from: the whole result, unless its type registers
    otherwise."""
    return [FigurePart(result)]


@singledispatch
def in_one(result: Any) -> Any:
    """Return what a figure that shows all of a result is drawn from: the result, unless its type registers
    otherwise."""
    return result


def save_figure(result: Any, path: Path | None, name: str = "steps") -> list[Path]:
    """Save the figure called ``name`` of a result as ``.pdf`` or ``.png``; all curves of an analysis are in one.

    Returns the file; nothing if there is no file to write or nothing to draw.

    Raises:
        ConfigError: if the name of the file has another suffix.
        ResultsError: if it cannot be written.
    """
    if result is None or path is None:
        return []
    if path.suffix not in FORMATS:
        raise ConfigError(f"--figure {path}: a figure is a .pdf or a .png file")
    kind = FIGURES[name]
    table = kind.compute(in_one(result))
    if not len(table):
        return []
    from analysis.present import style

    with atomic_file(path, "the figure ", "") as draft:
        style.save_as(kind.figure(table), draft)
    return [path]


def in_file_name(words: str) -> str:
    """Return ``words`` with only letters, digits and dots."""
    words = words.replace("<", "below").replace(">", "above")
    return re.sub(r"[^A-Za-z0-9.]+", "_", words).strip("_")


def tidy(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return a table with these columns first, then the other columns of the rows; NaN where a row has none."""
    table = pd.DataFrame(rows, columns=list(dict.fromkeys([*columns, *(name for row in rows for name in row)])))
    return table.astype(dict.fromkeys(table.columns[table.isna().all()], float))


def along(kind: str, **columns: Iterable[Any]) -> list[dict[str, Any]]:
    """Return rows of one kind, one for each index of the columns, which have the same length."""
    return [{"kind": kind} | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
