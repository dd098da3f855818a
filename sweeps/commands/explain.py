"""``cbs explain``."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from analysis.command_options import console, errors
from cbs.errors import ConfigError
from sweeps.commands import AsJson

PANEL = "Analyze"
GLOSSARY = Path(__file__).with_name("glossary.md")


def command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="A word, or several as one; with --settings each alone.")
    ] = None,
    settings: Annotated[
        bool,
        typer.Option(
            "--settings", help="List what --set can change in a sweep, with meanings: all, or what mentions a word."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a word of the output, or a setting, means.

    Options of an optimizer are listed by 'cbs optimizers NAME'.

    Example: cbs explain simple noise scale

    Example: cbs explain --settings cosine
    """
    if settings:
        _settings(words or (), as_json=as_json)
        return
    if not words:
        raise ConfigError("cbs explain: name a word of the output, such as PRUNED, or give --settings")
    wanted, known = " ".join(words), meanings()
    found = found_in(wanted, known)
    if not found:
        spelt = {term.lower(): term for word in known for term in _terms(word)}
        near = [spelt[term] for term in difflib.get_close_matches(wanted.lower(), spelt)]
        hint = f"did you mean {' or '.join(near)}?" if near else "docs/glossary.md has them all"
        raise ConfigError(f"no word {wanted!r} in the output: {hint}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for word, said in found.items():
        console().print(f"{word}: {said}")


def _settings(words: Sequence[str], *, as_json: bool) -> None:
    with errors.status("reading the settings"):
        from sweeps.recipes import RECIPES
        from sweeps.spec.reference import settings_about

        reference = settings_about(words, RECIPES.make("default"))
    if as_json:
        typer.echo(json.dumps(reference.to_json(), indent=2))
        return
    out = console()
    for line in reference.lines():
        out.print(line)


def found_in(wanted: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the words that ``wanted`` is, then those that it is a part of; else those that it consists of, as a
    heading does; else those whose meaning mentions it."""
    whole = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)", re.IGNORECASE)
    own = [word for word in known if wanted.lower() in map(str.lower, _terms(word))]
    found = {word: known[word] for word in dict.fromkeys([*own, *filter(whole.search, known)])}
    found = found or {word: known[word] for word in parts(wanted, known)[0]}
    return found or {word: said for word, said in known.items() if whole.search(said)}


def parts(heading: str, known: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the words of the glossary that a heading consists of, and what else stands in it.

    Example:

        >>> parts("examples there", {"example": "what a batch size counts"})
        (['example'], ['there'])
    """
    by_term: dict[str, list[str]] = {}
    for word in known:
        for term in _terms(word):
            by_term.setdefault(_singular(term), []).append(word)
    found, left = [], []
    rest = re.findall(r"[^\s/(),:;]+", heading)
    while rest:
        length = next((n for n in range(len(rest), 0, -1) if _singular(" ".join(rest[:n])) in by_term), 0)
        if length:
            found += by_term[_singular(" ".join(rest[:length]))]
        else:
            left.append(rest[0])
        rest = rest[max(length, 1) :]
    return list(dict.fromkeys(found)), left


def _terms(word: str) -> list[str]:
    """Return the single terms of a word of the glossary, which may have several names and says where it stands."""
    return re.split(r"[,;:] | \(", word)


def _singular(term: str) -> str:
    return re.sub(r"(?<=ch)es$|s$", "", term.lower())


def meanings() -> dict[str, str]:
    """Return the meaning of every word of the glossary, verdict, and definition of the critical batch size."""
    from analysis.estimate.definitions import DEFINITIONS
    from analysis.present.sentences import VERDICTS

    text = re.sub(r" \(\[why\]\([^)]+\)\)|`", "", GLOSSARY.read_text(encoding="utf-8"))
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
    by_word = {str(verdict): f"a verdict. {said}" for verdict, said in VERDICTS.items()}
    for name in DEFINITIONS:
        first = " ".join((DEFINITIONS[name].__doc__ or "").partition("\n\n")[0].split()).replace("``", "")
        by_word[name] = f"a definition of the critical batch size. {first}"
    command = ""
    for line in text.splitlines():
        if line.startswith("## "):  # "What is measured", or the command whose words they are
            command = "" if line.startswith("## What ") else f" ({line.removeprefix('## ')})"
        elif line.startswith("- "):
            word, _, said = line.removeprefix("- ").partition(": ")
            by_word[f"{word}{command}"] = said
    return by_word
