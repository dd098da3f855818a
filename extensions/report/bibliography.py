"""BibTeX entries that a result relies on: definitions of the critical batch size, optimizers, and this program."""

import functools
import inspect
import re
import sys
from pathlib import Path

import cbs
from analysis.estimate.definitions import DEFINITIONS
from cbs.registry.choices import Choice

SOFTWARE = "cbs"  # Key of the entry of this program

GAUSSIAN_PROCESSES = "rasmussen2006gaussian"

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
_EPRINT = re.compile(r"eprint = \{([^}]*)\}")
_OPTIMIZERS = re.compile(r", optimizers = \{([^}]*)\}")
"""Field with the registered names of the optimizers that a paper introduces; not printed."""


@functools.cache
def entries() -> dict[str, str]:
    """Return the BibTeX entries by key, from ``sources.bib`` beside this file and of this program."""
    lines = (Path(__file__).parent / "sources.bib").read_text().splitlines()
    known = {line[line.index("{") + 1 : line.index(",")]: line for line in lines if line.startswith("@")}
    title = "{cbs}: critical batch sizes of optimizers, with intervals"
    note = f"Version {cbs.__version__}, package critical-batch-size"
    known[SOFTWARE] = (
        f"@misc{{{SOFTWARE}, title = {{{title}}}, author = {{{{The cbs developers}}}}, note = {{{note}}}}}"
    )
    return known


def bibtex(keys: list[str]) -> str:
    """Return the entries of these keys, each once, one field per line."""
    texts = (_OPTIMIZERS.sub("", entries()[key]) for key in dict.fromkeys(keys))
    return "\n\n".join(re.sub(r", (?=\w+ = \{)", ",\n  ", text)[:-1] + "\n}" for text in texts)


def cited(name: str) -> list[str]:
    """Return the arXiv numbers that the file of a definition cites, each once."""
    return list(dict.fromkeys(ARXIV.findall(inspect.getdoc(sys.modules[DEFINITIONS[name].__module__]) or "")))


def of_definition(name: str) -> list[str]:
    """Return the keys of the sources that the file of a definition cites by arXiv number."""
    numbers = cited(name)
    return [key for key, entry in entries().items() if (found := _EPRINT.search(entry)) and found[1] in numbers]


def of_optimizer(choice: Choice) -> list[str]:
    """Return the keys of the papers whose entry names an optimizer; none for custom code, for optimizers known only
    from imports, and for classes of a library."""
    fields = {key: _OPTIMIZERS.search(entry) for key, entry in entries().items()}
    return [key for key, found in fields.items() if found and choice.name in found[1].split(", ")]
