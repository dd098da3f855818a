"""What the noise scale says about many models in many kinds of loops, against gradients taken example by example.

Every cell attaches a ``NoiseScaleMeter`` to a tiny model, makes three steps, and compares signal and noise of every
parameter tensor with those of a loop over examples.

``python -m benchmarks.models --write benchmarks/noise_scale_models.md`` makes the page, in
about an hour on one core; with ``--model`` or ``--mode`` its other cells stay as they are.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import torch

from benchmarks.model_cells import CRASHED, MODES, SOURCES, WRONG, Cell, run, suits
from benchmarks.model_page import Key, page, read, run_line, run_lines
from benchmarks.model_zoo import zoo

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


if __name__ == "__main__":
    sys.exit(main())
