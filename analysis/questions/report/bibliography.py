"""BibTeX of what a result rests on: the definitions of the critical batch size, the optimizers, and this program."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import cbs
from analysis.estimate.definitions import DEFINITIONS
from cbs.registry.choices import Choice

SOFTWARE = "cbs"
"""Key of this program."""

_ARXIV = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")
_EPRINT, _CITED_AS = re.compile(r"eprint = \{([^}]*)\}"), re.compile(r", cited_as = \{([^}]*)\}")


@functools.cache
def entries() -> dict[str, str]:
    """BibTeX by key, of ``sources.bib`` beside this file and of this program."""
    lines = (Path(__file__).parent / "sources.bib").read_text().splitlines()
    known = {line[line.index("{") + 1 : line.index(",")]: line for line in lines if line.startswith("@")}
    title = "{cbs}: critical batch sizes of optimizers, with intervals"
    note = f"Version {cbs.__version__}, package critical-batch-size"
    known[SOFTWARE] = (
        f"@misc{{{SOFTWARE}, title = {{{title}}}, author = {{{{The cbs developers}}}}, note = {{{note}}}}}"
    )
    return known


def bibtex(keys: list[str]) -> str:
    """The entries of these keys, each once, one field a line."""
    texts = (_CITED_AS.sub("", entries()[key]) for key in dict.fromkeys(keys))
    return "\n\n".join(re.sub(r", (?=\w+ = \{)", ",\n  ", text)[:-1] + "\n}" for text in texts)


def of_definition(name: str) -> list[str]:
    """Keys of the sources that the file of a definition names."""
    return list(_cited(inspect.getdoc(sys.modules[DEFINITIONS[name].__module__]) or ""))


def of_optimizer(choice: Choice) -> list[str]:
    """Keys of the papers that the registry names for an optimizer; none for code of one's own, which is not imported,
    for one that is not known here, as in imported results, and for a library's class."""
    from cbs.optimizers import OPTIMIZERS

    if ":" in choice.name or choice.name not in OPTIMIZERS:
        return []
    return list(_cited(OPTIMIZERS[choice.name].paper))


def _cited(text: str) -> Iterator[str]:
    """Keys of the sources that a text names by arXiv number, or as the entry says it is cited."""
    numbers = set(_ARXIV.findall(text))
    for key, entry in entries().items():
        eprint, cited_as = _EPRINT.search(entry), _CITED_AS.search(entry)
        if (eprint and eprint[1] in numbers) or (cited_as and cited_as[1] in text):
            yield key
