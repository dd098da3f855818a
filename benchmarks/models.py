"""What the noise scale says about many models in many kinds of loops, against gradients taken example by example.

Every cell attaches a ``NoiseScaleMeter`` to a tiny model, makes three steps, and compares signal and noise of every
parameter tensor with those of a loop over examples.

``python -m benchmarks.models --write benchmarks/noise_scale_models.md`` makes the page, in
about an hour on one core; with ``--model`` or ``--mode`` its other cells stay as they are.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import re
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

import torch

from benchmarks.model_cells import (
    CRASHED,
    EXACT,
    FALLBACK,
    MODES,
    NONE,
    REFUSED,
    SOURCES,
    TOLD,
    UNFIT,
    WRONG,
    Cell,
    run,
    suits,
    zoo,
)
from benchmarks.telling import head, line
from benchmarks.zoo_entry import Entry

PAGE = Path(__file__).resolve().parent / "noise_scale_models.md"


def keys(models: Sequence[str], modes: Sequence[str], sources: Sequence[str] = SOURCES) -> list[Key]:
    """The cells there are."""
    entries = zoo()
    return [
        (name, mode, source) for name in models for mode in modes if suits(entries[name], mode) for source in sources
    ]


def cell(key: Key) -> tuple[Key, Cell]:
    torch.set_num_threads(1)
    return key, run(*key)


def cells(wanted: Sequence[Key], processes: int) -> Iterator[tuple[Key, Cell]]:
    """Run cells, with the time left on standard error."""
    start = time.monotonic()
    pool = multiprocessing.get_context("spawn").Pool(processes) if processes > 1 else None
    results = pool.imap(cell, wanted, chunksize=len(SOURCES)) if pool else map(cell, wanted)
    for done, found in enumerate(results, start=1):
        yield found
        left = (time.monotonic() - start) / done * (len(wanted) - done)
        said = f"{done} of {len(wanted)} cells, {left:.0f} s left: {', '.join(found[0])}"
        print(f"\r{said:110}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if pool:
        pool.close()


def main(arguments: Sequence[str] | None = None) -> int:
    entries = zoo()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=list(entries), metavar="NAME", help="repeatable")
    parser.add_argument("--mode", action="append", choices=MODES, help="repeatable")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page; cells that are not run are kept from it")
    options = parser.parse_args(arguments)
    complete = not (options.model or options.mode)
    before = "" if complete or not (options.write and options.write.exists()) else options.write.read_text()
    kept, wanted = read(before), keys(options.model or list(entries), options.mode or MODES)
    found = {key: entry for key, entry in kept.items() if key in set(keys(list(entries), MODES))}
    found |= dict(cells(wanted, options.processes))
    text = page(entries, found, [*run_lines(before), run_line(wanted, date.today().isoformat())])
    print(text)
    if options.write:
        options.write.write_text(text)
    return int(any(entry.kind in (WRONG, CRASHED) for entry in found.values()))


Key = tuple[str, str, str]  # Model, mode, source

KINDS = (EXACT, FALLBACK, REFUSED, TOLD, NONE, UNFIT, WRONG, CRASHED)
LOUD = (WRONG, CRASHED)
EXACT_ONES = "## Exact"
WITHOUT_NAMES = "Without names of layers and numbers."


def page(entries: Mapping[str, Entry], found: Mapping[Key, Cell], runs: Sequence[str] = ()) -> str:
    """The whole page in Markdown; what stands above its tables stays.

    Args:
        entries: the models.
        found: what became of the cells.
        runs: lines of :func:`run_line`, oldest first.
    """
    lines: dict[str, int] = {}
    exact = _exact(entries, found)
    named = {name for names in exact.values() for name in names}
    body = "\n".join(_table(entries, {key: cell for key, cell in found.items() if key[0] not in named}, lines))
    lists = [
        textwrap.fill(f"In {', '.join(modes)}: {'; '.join(names)}.", 150, break_on_hyphens=False)
        for modes, names in exact.items()
    ]
    said = "\n".join(f"{number}. {line}" for line, number in lines.items())
    when = "\n\n".join(filter(None, ("Cells that no line names were run with earlier code.", "\n".join(runs))))
    above = re.split(r"\n\n(?=\d+ cells of )", PAGE.read_text())[0]
    parts = (above, _counts(found), body, EXACT_ONES, *lists, "## When", when, "## What was said", WITHOUT_NAMES, said)
    return "\n\n".join(filter(None, parts)) + "\n"


def run_line(keys: Sequence[Key], day: str) -> str:
    """When some cells were run."""
    modes = sorted({mode for _, mode, _ in keys}, key=MODES.index)
    return f"- {day}: {len(keys)} cells of {len({name for name, _, _ in keys})} models ({', '.join(modes)})"


def run_lines(text: str) -> list[str]:
    """Those of a page."""
    return re.findall(r"^- \d{4}-\d{2}-\d{2}: .*$", text, re.MULTILINE)


def read(text: str) -> dict[Key, Cell]:
    """The cells of a page."""
    lines = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    found: dict[Key, Cell] = {}
    rows = [row.strip("|").split("|") for row in text.splitlines() if row.startswith("|")]
    modes: list[str] = []
    for model, *cells in ([part.strip() for part in row] for row in rows):
        if model == "model":
            modes = cells[2:]
        elif modes and not set(model) <= {"-"}:
            for mode, shown in zip(modes, cells[2:], strict=True):
                for source, kind, number in _shown(shown):
                    found[model, mode, source] = Cell(kind, lines.get(number, ""), cells[1] == "yes")
    for shown, names in re.findall(r"^In ([^:]*): ((?:.+\n)+)", text, re.MULTILINE):
        keys = itertools.product(" ".join(names.split()).rstrip(".").split("; "), shown.split(", "), SOURCES)
        found |= dict.fromkeys(keys, Cell(EXACT))
    return found


def _exact(entries: Mapping[str, Entry], found: Mapping[Key, Cell]) -> dict[tuple[str, ...], list[str]]:
    """Models that are exact wherever they were run, by the modes that is."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name in entries:
        modes = tuple(mode for mode in MODES if any((name, mode, source) in found for source in SOURCES))
        cells = [found.get((name, mode, source)) for mode in modes for source in SOURCES]
        if cells and all(cell is not None and cell.kind == EXACT and cell.separable for cell in cells):
            names.setdefault(modes, []).append(name)
    return names


def _counts(found: Mapping[Key, Cell]) -> str:
    rows = [head((f"{'source':12}", *KINDS))]
    for source in SOURCES:
        count = Counter(cell.kind for key, cell in found.items() if key[2] == source)
        rows.append(line((f"`{source}`", *(count[kind] for kind in KINDS))))
    models = len({name for name, _, _ in found})
    return f"{len(found)} cells of {models} models:\n\n" + "\n".join(rows)


def _table(entries: Mapping[str, Entry], found: Mapping[Key, Cell], lines: dict[str, int]) -> list[str]:
    modes = [mode for mode in MODES if any(key[1] == mode for key in found)]
    rows = [head(("model", "reference", "own", *modes))]
    for name, entry in entries.items():
        here = {key[1:]: cell for key, cell in found.items() if key[0] == name}
        if here:
            own = "yes" if all(cell.separable for cell in here.values()) else "no"
            shown = [
                _cell({source: here[mode, source] for source in SOURCES if (mode, source) in here}, lines)
                for mode in modes
            ]
            reference = "alone" if entry.terms is None else "same masks"
            rows.append(line((name, reference, own, *shown)))
    return rows


SHORT = {"split": "S", "per_example": "P", "accumulation": "A", "auto": "auto"}
LONG = {short: source for source, short in SHORT.items()}


def _cell(here: Mapping[str, Cell], lines: dict[str, int]) -> str:
    """Sources with the same outcome together."""
    outcomes: dict[str, list[str]] = {}
    for source, cell in here.items():
        shown = f"**{cell.kind}**" if cell.kind in LOUD else cell.kind
        line = general(cell.line)
        if line and cell.kind != FALLBACK:
            shown += f" {lines.setdefault(line, len(lines) + 1)}"
        outcomes.setdefault(shown, []).append(SHORT[source])
    if len(outcomes) == 1 and len(here) == len(SOURCES):
        return next(iter(outcomes))
    return "<br>".join(f"{' '.join(sources)} {shown}" for shown, sources in outcomes.items())


def _shown(text: str) -> list[tuple[str, str, str]]:
    """Source, outcome and number of the line, for every source of a cell."""
    found = []
    for part in filter(None, text.split("<br>")):
        match = re.fullmatch(rf"((?:(?:S|P|A|auto) )*)\**({'|'.join(KINDS)})\**(?: (\d+))?", part)
        if match is None:
            raise ValueError(f"not a cell of the page of models: {part!r}")
        sources = match[1].split() or list(LONG)
        found += [(LONG[source], match[2], match[3] or "") for source in sources]
    return found


def general(line: str) -> str:
    """A line without what differs from model to model."""
    line = re.sub(r"(?<!\w)(?<!source )'[^']*'", "'...'", line)
    line = re.sub(r"\b\d[\d.e+]*\b", "n", line)
    return line.replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
