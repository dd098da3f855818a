r"""What programs print, read by patterns: format ``stdout`` is given them, a known program has them in its own file.

A pattern is a regular expression, searched in the output without colours and with one line per redrawing of a progress
bar. Its group ``step`` counts the updates made before the measurement; a group ``update`` is the number of the update
that was being made, so that a loss of its batch was measured one update earlier. Every other group names a metric.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from analysis.read.importers.base import PRINTED, Claim, ImportedRun, Importer, run_of
from analysis.read.importers.files import below, read
from analysis.read.importers.settings import AXES, Settings
from analysis.read.table import of_rows
from cbs.errors import DataError

NUMBER = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?)\b"
"""Pattern of a number as programs print it, with or without commas between thousands."""

_SUFFIXES = ("*.log", "*.txt", "*.out")
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LOOKED_AT = 3
WAS_UPDATE = "a loss of a training batch was measured before its update: 1 was taken from the step that is printed"


def group(name: str) -> str:
    """Return the pattern of a number with a name."""
    return f"(?P<{name}>{NUMBER})"


class Printed(Importer):
    """The output of a program, one run per file.

    Attributes:
        lines: patterns of a measurement.
        once: patterns of what holds for the whole run: its ``batch_size``, the ``tokens`` of an update, or ``name`` and
            ``value`` of a setting.
        doubt: a metric, and what to know about it.
        counts_tokens: the program's name for the tokens per example, if it prints only the tokens of an update.
    """

    expected = "a file with what the program printed, or a folder of files that end in .log, .txt or .out"
    lines: ClassVar[tuple[str, ...]] = ()
    once: ClassVar[tuple[str, ...]] = ()
    doubt: ClassVar[tuple[str, str]] = ("", "")
    counts_tokens: ClassVar[str] = ""

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim the files that end as logs do if one of the first has a line of the format."""
        files = below(Path(source), *_SUFFIXES)
        with contextlib.suppress(DataError):
            if any(self.rows(output_of(path)) for path in files[:_LOOKED_AT]):
                return Claim.of(files, "files with lines that the program prints", PRINTED)
        return None

    def files(self, source: str) -> list[Path]:
        return [Path(source)] if Path(source).is_file() else below(Path(source), *_SUFFIXES)

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the measurements in the order in which they were printed."""
        found = [(match.start(), match.groupdict()) for line in self.lines for match in re.finditer(line, output)]
        return [counted(row) for _, row in sorted(found, key=lambda each: each[0])]

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        for path in self.files(source):
            output = output_of(path)
            table = of_rows(str(path), self.rows(output), "measurement")
            name = path.name if path == Path(source) else str(path.relative_to(source))
            facts, config = self._stated(path, output, settings)
            unit = next((each for each in AXES if each in table.columns), "step")
            yield run_of(
                table, settings, settings.axis(unit, unit), name=name, aliases=(str(path), path.stem), files=(path,),
                facts=facts, config=config,
            )  # fmt: skip
            of_update = any("<update>" in line and f"<{settings.measured}>" in line for line in self.lines)
            notes += [WAS_UPDATE] * of_update + [self.doubt[1]] * (settings.measured == self.doubt[0])

    def _stated(self, path: Path, output: str, settings: Settings) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the facts and the settings that a run prints; it must not contradict itself."""
        facts: dict[str, Any] = {}
        config: dict[str, str] = {}
        for said in (match.groupdict() for pattern in self.once for match in re.finditer(pattern, output)):
            if "name" in said:
                config[said["name"]] = said["value"].strip()
                continue
            ((name, amount),) = counted(said).items()
            if facts.setdefault(name, amount) != amount:
                raise DataError(
                    f"{path}: the {name} of an update is {facts[name]:g} at first and {amount:g} later; a curve has one"
                )
        each, tokens = settings.tokens_per_example, facts.pop("tokens", None)
        if tokens is not None and each is None:
            raise DataError(
                f"{path}: an update has {tokens:g} tokens, which are compared with the batch size: give "
                f"{self.counts_tokens} as --tokens-per-example N"
            )
        if tokens is not None and each is not None:
            facts["batch_size"] = tokens / each
        if "batch_size" in facts and settings.batch_unit == "tokens" and each is not None:
            facts["batch_size"] *= each
        return facts, config


def output_of(path: Path) -> str:
    """Return what a program printed to a file, without codes of colours and with one kind of line break."""
    text = read(path, lambda content: content.decode("utf-8", "replace"))
    return _CODES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def counted(row: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a measurement from the texts of its groups, with the updates made before it as its step."""
    numbers = {name: float(text.replace(",", "")) for name, text in row.items() if text is not None}
    return {"step": numbers.pop("update") - 1, **numbers} if "update" in numbers else numbers
