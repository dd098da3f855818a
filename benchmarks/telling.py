"""What benchmarks print: tables in Markdown, and whether intervals hold the truth."""

from collections.abc import Iterable, Sequence


def line(cells: Iterable[object]) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(titles: Sequence[str]) -> str:
    """The two lines above the rows of a table."""
    return f"{line(titles)}\n|{'---|' * len(titles)}"


def holds(interval: Sequence[float | None], truth: float) -> bool:
    """Whether an interval, its open ends 0 and infinity, holds the truth."""
    low, high = interval
    return (low is None or low <= truth) and (high is None or truth <= high)


def renewed(page: str, begin: str, end: str, text: str) -> str:
    """A page with what stands between two marks replaced.

    Raises:
        ValueError: if they do not stand there once.
    """
    before, *rest = page.split(begin)
    if len(rest) != 1 or end not in rest[0]:
        raise ValueError(f"the page has {len(rest)} places for {begin.strip()}, not one that {end.strip()} ends")
    return before + begin + text + rest[0][rest[0].index(end) :]
