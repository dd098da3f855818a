r"""What programs print, by patterns: format ``stdout`` is given them, a known program has them in its own file.

A pattern is a regular expression, searched in the output without colours and with one line per redrawing of a progress
bar. Its group ``step`` counts the updates made before the measurement; a group ``update`` is the number of the update
that was being made, so that a loss of its batch was measured one update earlier. Every other group names a metric.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from analysis.read.importers.base import IMPORTERS, PRINTED, Claim, ImportedRun, Importer, axis_of, in_file, run_of
from analysis.read.importers.files import below, read
from analysis.read.importers.settings import AXES, Settings
from analysis.read.table import of_rows
from cbs.errors import ConfigError, DataError

NUMBER = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?)\b"
"""Pattern of a number as programs print it, with or without commas between thousands."""

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LOOKED_AT = 3  # Files that are read to tell whether a pattern fits a folder
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
        stepless: what to do where no measurement has a step.
    """

    expected = "a file with what the program printed, or a folder of files that end in .log, .txt or .out"
    marks = (("*.log", "*.txt", "*.out"), "files with lines that the program prints")
    lines: ClassVar[tuple[str, ...]] = ()
    once: ClassVar[tuple[str, ...]] = ()
    doubt: ClassVar[tuple[str, str]] = ("", "")
    counts_tokens: ClassVar[str] = ""
    stepless: ClassVar[str] = "no measurement has a step"

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim the files that end as logs do if one of the first has a line of the format."""
        files = below(Path(source), *self.marks[0])
        with contextlib.suppress(DataError):
            if any(self.rows(output_of(path)) for path in files[:_LOOKED_AT]):
                return Claim.of(files, self.marks[1], PRINTED)
        return None

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the measurements in the order in which they were printed."""
        found = [(match.start(), match.groupdict()) for line in self.lines for match in re.finditer(line, output)]
        return [counted(row) for _, row in sorted(found, key=lambda each: each[0])]

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        for path in self.files(source):
            output = output_of(path)
            table = of_rows(str(path), self.rows(output), "measurement")
            facts, config = self._stated(path, output, settings)
            axis = axis_of(table, settings)
            if table.columns and axis[1] not in table.columns:
                raise DataError(f"{path}: {self.stepless}")
            yield run_of(table, settings, axis, facts=facts, config=config, **in_file(path, source))
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


_METRIC = "metric"
_KEY = re.compile(rf"(?:^|,)\s*({'|'.join((*AXES, _METRIC))})\s*=\s*")


@IMPORTERS.register("stdout")
class Stdout(Printed):
    """Lines in which both patterns are found.

    Each is searched in every line, and the number is what its parentheses enclose; a pattern without parentheses stands
    for the first number after it. In place of ``step``, ``examples`` or ``tokens`` may count. Both numbers have to be
    on one line: the step of an earlier line need not be that of the measurement.

    Args:
        patterns: ``step=PATTERN, metric=PATTERN``; without any it recognises nothing.
    """

    form = "step=PATTERN, metric=PATTERN"

    def __init__(self, patterns: str | None = None) -> None:
        _, *parts = _KEY.split(patterns or "")
        self.patterns = {key: _compiled(key, text) for key, text in zip(parts[::2], parts[1::2], strict=True)}
        if patterns is not None and (len(self.patterns) != 2 or _METRIC not in self.patterns):
            raise ConfigError(
                f"stdout({patterns}): write stdout({self.form}), as in "
                r"'stdout(step=step (\d+):, metric=val loss ([\d.]+))'"
            )

    def claims(self, source: str, settings: Settings | None = None) -> Claim | None:
        return None

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return the measurements; lines in which a pattern has several numbers, or none with both, are an error."""
        rows, hits = [], dict.fromkeys(self.patterns, 0)
        for line in output.split("\n"):
            found = {key: {match[1] for match in pattern.finditer(line)} for key, pattern in self.patterns.items()}
            hits = {key: hits[key] + bool(numbers) for key, numbers in found.items()}
            if not all(found.values()):
                continue
            for key, numbers in found.items():
                if len(numbers) > 1:
                    raise DataError(
                        f"{key}= finds {' and '.join(sorted(numbers))} in {line.strip()!r}: make it match one"
                    )
            rows.append(counted({key: numbers.pop() for key, numbers in found.items()}))
        if not rows:
            counts = ", ".join(f"{key}= in {count}" for key, count in hits.items())
            raise DataError(
                f"both patterns have to be found in one line; of {len(output.splitlines())}: {counts}; join lines that "
                "hold one each, or write what they say as a table"
            )
        return rows

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        renamed = dataclasses.replace(settings, columns={**settings.columns, str(settings.metric): _METRIC})
        return super().read(source, renamed, notes)


def _compiled(key: str, text: str) -> re.Pattern[str]:
    """Return a pattern with one group."""
    text = re.sub(r"^(['\"])(.*)\1$", r"\2", text.strip())
    try:
        groups = re.compile(text).groups
        pattern = re.compile(text if groups else rf"{text}\D*?({NUMBER})")
    except re.error as error:
        raise ConfigError(f"{key}={text} is no regular expression: {error}") from None
    if groups > 1:
        raise ConfigError(f"{key}={text} has {groups} groups: write (?:...) for those that are no number")
    return pattern
