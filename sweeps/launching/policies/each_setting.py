"""``--axis schedule.name=constant,cosine``: run one sweep for every value of a setting that all trials of a sweep
share.

An option of an optimizer is tuned inside one sweep (:mod:`sweeps.spec.axes`). Any other setting is part of the
protocol, so each of its values is a sweep in a folder of its own and gets its own curves.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cbs.errors import ConfigError
from cbs.registry.choices import parse_value, value_text
from sweeps.launching.launch import resolve
from sweeps.launching.policies.base import Policy, SweepReport, Sweeps
from sweeps.outlook.cost import Cost
from sweeps.search.limits import Limits
from sweeps.spec.overrides import is_setting, override
from sweeps.spec.spec import Sweep

_NOT_IN_FOLDERS = re.compile(r"[^\w.,=+()-]+")


def split_axes(axes: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Split axes of the form ``key=value,value,...`` into settings of a sweep, as values by key, and options of
    optimizers, left as text.

    Raises:
        ConfigError: if a setting is given twice, or has fewer than two values.
    """
    settings: dict[str, tuple[str, ...]] = {}
    rest = []
    for text in axes:
        key, equals, listed = (part.strip() for part in text.partition("="))
        if not equals or not is_setting(key):
            rest.append(text)
            continue
        values = tuple(map(value_text, parse_value(f"[{listed}]")))
        if key in settings or len(set(values)) < max(2, len(values)):
            raise ConfigError(f"--axis {text}: an axis takes two values or more, each once; --set {key}= sets one")
        settings[key] = values
    return settings, rest


class EachSetting(Policy):
    """Follows another policy once for every combination of settings, in folders next to the requested one.

    Args:
        makes: creates a new policy for each combination.
        axes: values of each setting, by its key as in ``--set``.
    """

    stored = False

    def __init__(self, makes: Callable[[], Policy], axes: Mapping[str, Sequence[str]]) -> None:
        self._makes, self._axes = makes, axes
        self.timed = makes().timed  # type: ignore[misc]

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        for settings in self._combinations():
            self._makes().check(override(sweep, settings), limits=limits, source=source)

    def sweeps(self, sweep: Sweep, folder: Path, limits: Limits, note: Callable[[str], None]) -> Sweeps:
        reports = []
        for settings, part, place in self._parts(sweep, folder):
            note(f"{', '.join(settings)}: {place}")
            reports.append((settings, (yield from self._makes().sweeps(part, place, limits, note))))
            if limits.reached:
                break
        return self._joined(folder, reports)

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        parts = self._parts(sweep, folder)
        return self._joined(
            folder,
            [(names, self._makes().preview(part, place, cost, workers, gpu_hour)) for names, part, place in parts],
        )

    def not_counted(self, report: SweepReport, limits: Limits) -> Iterator[str]:
        yield "step times are those of the sweep without the values of --axis"
        yield from self._makes().not_counted(report, limits)

    def _combinations(self) -> Iterator[list[str]]:
        for values in itertools.product(*self._axes.values()):
            yield [f"{key}={value}" for key, value in zip(self._axes, values, strict=True)]

    def _parts(self, sweep: Sweep, folder: Path) -> list[tuple[list[str], Sweep, Path]]:
        """Return settings, sweep and folder of every combination; all are checked before the first one runs."""
        parts = []
        for settings in self._combinations():
            name = _NOT_IN_FOLDERS.sub("_", "-".join([folder.name, *settings]).replace('"', ""))
            parts.append((settings, resolve(override(sweep, settings)), folder.with_name(name)))
        return parts

    def _joined(self, folder: Path, reports: Sequence[tuple[list[str], SweepReport]]) -> SweepReport:
        lines: list[str] = []
        for settings, report in reports:
            lines += [*([""] if lines else []), f"== {', '.join(settings)}", *report.lines]
        contents = [report.content for _, report in reports]
        examples = [content.get("examples") for content in contents]
        failures = [content["failures"] for content in contents if "failures" in content]
        return SweepReport(
            {
                "output": str(folder),
                "axes": {key: list(values) for key, values in self._axes.items()},
                "examples": None if None in examples else sum(examples),
                "failures": {
                    "trials": sum(part["trials"] for part in failures),
                    "first": next((part["first"] for part in failures if part["first"]), None),
                },
                "sweeps": [{"settings": settings, **report.content} for settings, report in reports],
            },
            lines,
        )
