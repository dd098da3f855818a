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
