r"""Format ``stdout(step=PATTERN, metric=PATTERN)``: what any program prints, by two regular expressions.

Each is searched in every line, and the number is what its parentheses enclose; a pattern without parentheses stands for
the first number after it. In place of ``step``, ``examples`` or ``tokens`` may count. Both numbers have to be on one
line: the step of an earlier line need not be that of the measurement.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from analysis.read.importers.base import IMPORTERS, Claim, ImportedRun
from analysis.read.importers.printed import NUMBER, Printed, counted
from analysis.read.importers.settings import AXES, Settings
from cbs.errors import ConfigError, DataError

_METRIC = "metric"
_KEY = re.compile(rf"(?:^|,)\s*({'|'.join((*AXES, _METRIC))})\s*=\s*")


@IMPORTERS.register("stdout")
class Stdout(Printed):
    """Lines in which both patterns are found.

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
