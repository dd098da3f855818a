"""Runs the cheap commands whose numbers stand in the pages, and says where a page is out of date.

A page names them in comments that readers do not see:

- ``<!-- file: steps.csv -->`` before a block: the block is that file, for the commands that follow on the page.
- ``<!-- prints: cbs fit steps.csv -->`` before a block: the block is what the command prints, spaces aside.
- ``<!-- numbers: cbs theory quadratic --optim sgd: 601, 6672 -->``: the command prints these, and the page says them.

Run from the root of the repository: ``python docs/site/numbers.py [PAGE]...``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"<!-- (file|prints|numbers): (.*?) -->\n*(?:```\w*\n(.*?)^```)?", re.DOTALL | re.MULTILINE)


def out_of_date(page: Path) -> Iterator[str]:
    """What a page says otherwise than its commands, a line each."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for kind, what, block in MARK.findall(text):
            if kind == "file":
                Path(folder, what).write_text(block)
                continue
            command, numbers = what, ""
            if kind == "numbers":
                command, _, numbers = what.rpartition(": ")
            # a screen leaves out rows of long tables, and with them their numbers
            printed = output(f"{command} --wide" if kind == "numbers" else command, Path(folder))
            if kind == "prints" and printed.split() != block.split():
                yield f"{page.name}: {command!r} prints otherwise now:\n{printed}"
            shown = MARK.sub("", text)
            for number in re.split(r",\s+", numbers) if numbers else ():
                places = [
                    where for where, said in (("its command", printed), ("the page", shown)) if not holds(said, number)
                ]
                if places:
                    yield f"{page.name}: {number} of {command!r} is not said by {' and '.join(places)}"


def holds(text: str, number: str) -> bool:
    """Whether a number stands in a text, on its own."""
    return re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", text) is not None


def output(command: str, folder: Path) -> str:
    """What a command prints, at 80 columns."""
    answer = subprocess.run(
        [sys.executable, "-m", "cli", *shlex.split(command)[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    return answer.stdout if answer.returncode == 0 else answer.stderr


def main(names: list[str]) -> int:
    """Check the pages that were named, or all; returns the exit code."""
    pages = [Path(name) for name in names] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    marks = sum(len(MARK.findall(page.read_text())) for page in pages)
    lines = [line for page in pages for line in out_of_date(page)]
    print("\n".join(lines) if lines else f"{marks} marked numbers, tables and files are up to date")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
