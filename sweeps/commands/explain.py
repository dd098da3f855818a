"""``cbs explain``."""

import difflib
import re
from pathlib import Path
from typing import Annotated

import typer

from analysis.consoles import console
from cbs.errors import ConfigError

PANEL = "Analyze"
GLOSSARY = Path(__file__).with_name("glossary.md")


def command(words: Annotated[list[str], typer.Argument(metavar="WORD", help="A word, or several as one.")]) -> None:
    """Say what a word of the output means.

    Example: cbs explain PRUNED

    Example: cbs explain simple noise scale
    """
    wanted, known = " ".join(words), meanings()
    whole = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)", re.IGNORECASE)
    found = {word: said for word, said in known.items() if whole.search(word)}
    found = found or {word: said for word, said in known.items() if whole.search(said)}
    if not found:
        parts = {part.lower(): part for word in known for part in re.split(r"[,;] | \(", word)}
        near = [parts[part] for part in difflib.get_close_matches(wanted.lower(), parts)]
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/glossary.md has them all"
        raise ConfigError(f"no word {wanted!r} in the output: {hint}")
    for word, said in found.items():
        console().print(f"{word}: {said}")


def meanings() -> dict[str, str]:
    """Return the meaning of every word of the glossary, verdict, and definition of the critical batch size."""
    from analysis.estimate.definitions import DEFINITIONS

    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", GLOSSARY.read_text(encoding="utf-8")).replace("`", "")
    (verdicts,) = (part.partition(":\n")[0] for part in text.split("\n\n") if part.startswith("ok ·"))
    by_word = dict.fromkeys(
        (verdict.partition(" (")[0] for verdict in re.split(r" ·\s", verdicts)),
        "a verdict; docs/fits.md says what each means and what to do",
    )
    for name in DEFINITIONS:
        first = " ".join((DEFINITIONS[name].__doc__ or "").partition("\n\n")[0].split()).replace("``", "")
        by_word[name] = f"a definition of the critical batch size. {first}"
    for line in (line for line in text.splitlines() if line.startswith("| ") and not line.endswith("| meaning |")):
        word, *command, said = (cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        by_word[f"{word} ({command[0]})" if command else word] = said
    return by_word
