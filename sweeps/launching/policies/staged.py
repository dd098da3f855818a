"""Policies that follow others, one after the other; ``--axis schedule.name=constant,cosine`` is one of them.

An option of an optimizer is tuned inside one sweep (:mod:`sweeps.spec.axes`). Any other setting is part of the
protocol, so each of its values is a sweep in a folder of its own and gets its own curves.
"""

import functools
import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import parse_value, value_text
from cbs.training.parents import parent_at
from sweeps.launching.launch import resolve
from sweeps.launching.policies import Policy, SweepReport, Underway
from sweeps.outlook.cost import Cost
from sweeps.search.search import Limits
from sweeps.spec.overrides import is_setting, override
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import calling_theirs

_NOT_IN_FOLDERS = re.compile(r"[^\w.,=+()-]+")


@dataclass(frozen=True)
class PolicyStage:
    """A sweep with a policy and a folder of its own, one of several.

    Attributes:
        name: name in lines for the user.
        policy: chooses what follows the sweep.
        sweep: the sweep.
        folder: folder of everything that the policy runs.
    """

    name: str
    policy: Policy
    sweep: Sweep
    folder: Path


class StagedPolicy(Policy):
    """Follows several policies, one after the other. All their sweeps are checked before the first one runs."""

    stored = False

    @abstractmethod
    def stages(self, sweep: Sweep, folder: Path) -> list[PolicyStage]:
        """Return the stages in order, each with a new policy.

        Args:
            sweep: the requested sweep.
            folder: its folder.
        """

    def joined(self, folder: Path, reports: Sequence[tuple[PolicyStage, SweepReport]]) -> SweepReport:
        """Return one report of all stages that have begun; ``folder`` is that of the requested sweep."""
        lines: list[str] = []
        for stage, report in reports:
            lines += [*([""] if lines else []), f"== {stage.name}", *report.lines]
        contents = [report.content for _, report in reports]
        examples: list[Any] = [content.get("examples") for content in contents]
        failures = [content["failures"] for content in contents if "failures" in content]
        content = {
            "output": str(folder),
            "examples": None if None in examples else sum(examples),
            "failures": {
                "trials": sum(part["trials"] for part in failures),
                "first": next((part["first"] for part in failures if part["first"]), None),
            },
            "sweeps": [{"stage": stage.name} | report.content for stage, report in reports],
        }
        return SweepReport(content, lines)

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        for stage in self.stages(sweep, Path(sweep.name)):
            stage.policy.check(stage.sweep, limits=limits, source=source)

    def next(self, underway: Underway) -> tuple[Sweep, Path] | None:
        if not underway.ran:
            self._planned[:] = map(_checked, self.stages(underway.sweep, underway.folder))
        begun = [index for index, stage in enumerate(self._planned) if _of(underway, stage).ran]
        for index in range(max(begun, default=0), len(self._planned)):
            stage = self._planned[index]
            if index not in begun:
                if begun and underway.limits.reached:
                    underway.note(f"{underway.limits.reached}: no trial starts for {stage.name} and what follows it")
                    return None
                underway.note(f"{stage.name}: {stage.folder}")
                self._planned[index] = stage = self._started(stage)
            if (following := stage.policy.next(_of(underway, stage))) is not None:
                return following
        return None

    def report(self, underway: Underway) -> SweepReport:
        parts = [(stage, _of(underway, stage)) for stage in self._planned]
        return self.joined(underway.folder, [(stage, stage.policy.report(part)) for stage, part in parts if part.ran])

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        stages = map(_checked, self.stages(sweep, folder))
        return self.joined(folder, [(s, s.policy.preview(s.sweep, s.folder, cost, workers, gpu_hour)) for s in stages])

    @functools.cached_property
    def _planned(self) -> list[PolicyStage]:
        return []

    def _started(self, stage: PolicyStage) -> PolicyStage:
        """Return a stage that begins: if it starts from the checkpoint of an earlier one, with this checkpoint."""
        after = stage.sweep.start.after
        if not after:
            return stage
        source = next(each.folder for each in self._planned if each.name == after)
        kept = sorted(source.glob("kept/*/*.pt"))
        if len(kept) != 1:
            raise ResultsError(f"{source} holds {len(kept)} checkpoints, but {stage.name} starts from exactly one")
        # stages may differ in the optimizer, whose state another cannot take over
        parent = replace(parent_at(kept[0]), optimizer="reset")
        return _checked(replace(stage, sweep=stage.sweep.replace(parent=parent, after="")))


def _checked(stage: PolicyStage) -> PolicyStage:
    with calling_theirs():
        return replace(stage, sweep=resolve(stage.sweep))


def _of(underway: Underway, stage: PolicyStage) -> Underway:
    """Return what is under way of a stage."""
    ran = [
        (search, folder) for search, folder in underway.ran if folder == stage.folder or stage.folder in folder.parents
    ]
    return replace(underway, sweep=stage.sweep, folder=stage.folder, ran=ran)


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


class EachSetting(StagedPolicy):
    """Follows another policy once for every combination of settings, in folders next to the requested one.

    Args:
        makes: creates a new policy for each combination.
        axes: values of each setting, by its key as in ``--set``.
    """

    def __init__(self, makes: Callable[[], Policy], axes: Mapping[str, Sequence[str]]) -> None:
        self._makes, self._axes = makes, axes
        self.timed = makes().timed  # type: ignore[misc]

    def stages(self, sweep: Sweep, folder: Path) -> list[PolicyStage]:
        stages = []
        for settings in self._combinations():
            name = _NOT_IN_FOLDERS.sub("_", "-".join([folder.name, *settings]).replace('"', ""))
            beside = folder.with_name(name)
            stages.append(PolicyStage(", ".join(settings), self._makes(), override(sweep, settings), beside))
        return stages

    def joined(self, folder: Path, reports: Sequence[tuple[PolicyStage, SweepReport]]) -> SweepReport:
        report = super().joined(folder, reports)
        axes = {key: list(values) for key, values in self._axes.items()}
        # a limit may have ended it before the last combination
        both = zip(self._combinations(), reports, strict=False)
        sweeps = [{"settings": settings} | one.content for settings, (_, one) in both]
        return SweepReport({"output": str(folder), "axes": axes} | report.content | {"sweeps": sweeps}, report.lines)

    def not_counted(self, report: SweepReport, limits: Limits) -> Iterator[str]:
        yield "step times are those of the sweep without the values of --axis"
        yield from self._makes().not_counted(report, limits)

    def _combinations(self) -> Iterator[list[str]]:
        for values in itertools.product(*self._axes.values()):
            yield [f"{key}={value}" for key, value in zip(self._axes, values, strict=True)]
