"""Save one figure of a result to a file that the user names."""

from __future__ import annotations

from pathlib import Path

from analysis.present import Result
from cbs.errors import ConfigError
from cbs.files import atomic_file


def save_figure(result: Result | None, path: Path | None, name: str = "steps") -> list[Path]:
    """Save the figure called ``name`` of a result as ``.pdf`` or ``.png``; all curves of an analysis are in one.

    Returns the file; nothing if there is no file to write or nothing to draw.

    Raises:
        ConfigError: if the name of the file has another suffix.
        ResultsError: if it cannot be written.
    """
    if result is None or path is None:
        return []
    from analysis.present import style
    from analysis.present.figures import FIGURES, in_one

    if path.suffix not in (".pdf", ".png"):
        raise ConfigError(f"--figure {path}: a figure is a .pdf or a .png file")
    kind = FIGURES[name]
    table = kind.compute(in_one(result))
    if not len(table):
        return []
    with atomic_file(path, "the figure ", "") as draft:
        style.save_as(kind.figure(table), draft)
    return [path]
