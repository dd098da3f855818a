"""``cbs explain``."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated

import typer

from analysis.consoles import console
from cbs.errors import ConfigError

PANEL = "Analyze"

GLOSSARY = Path(__file__).with_name("glossary.md")
"""The page of the documentation that has every word of the output in tables."""

_CELLS = re.compile(r"(?<!\\)\|")


def command(
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="A word or several that belong together.")],
) -> None:
    """Say what a word of the output means.

    Example: cbs explain PRUNED

    Example: cbs explain simple noise scale
    """
    wanted, known = " ".join(words), meanings()
    whole = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)", re.IGNORECASE)
    found = {word: meaning for word, meaning in known.items() if whole.search(word)}
    found = found or {word: meaning for word, meaning in known.items() if whole.search(meaning)}
    if not found:
        parts = {part.lower(): part for word in known for part in re.split(r"[,;] | \(", word)}
        near = [parts[part] for part in difflib.get_close_matches(wanted.lower(), parts)]
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/glossary.md has them all"
        raise ConfigError(f"no word {wanted!r} in the output: {hint}")
    for word, meaning in found.items():
        console().print(f"{word}: {meaning}")


def meanings() -> dict[str, str]:
    """Every word of the output with its meaning: those of the glossary, the definitions of the critical batch size and
    the verdicts."""
    from analysis.estimate.definitions import DEFINITIONS

    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", GLOSSARY.read_text(encoding="utf-8")).replace("`", "")
    rows = [[cell.strip() for cell in _CELLS.split(line)[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    by_word: dict[str, str] = {}
    for word, *command, meaning in rows:
        if meaning != "meaning":
            by_word[f"{word} ({command[0]})" if command else word] = meaning.replace(r"\|", "|")
    for name in DEFINITIONS:
        first = (DEFINITIONS[name].__doc__ or "").partition("\n")[0].replace("``", "")
        by_word[name] = f"a definition of the critical batch size. {first}"
    (verdicts,) = (part for part in text.split("\n\n") if part.startswith("ok ·"))
    for verdict in re.split(r" ·\s", verdicts.partition(":\n")[0]):
        by_word[verdict.partition(" (")[0]] = "a verdict; docs/fits.md says what each means and what to do"
    return by_word
