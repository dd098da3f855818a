"""Options that all rules which observe the run have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from cbs.schedules.batch_size.base import ClosedLoop, Observed, RunSettings, Stage, cap_of, capped, exponent, scaled


@dataclass(frozen=True, kw_only=True)
class Looking:
    """How a rule observes the run, and how far it may go.

    Attributes:
        cap: largest batch size.
        lr_exponent: the learning rate follows the batch size with this power.
        measurements: number of measured steps between two observations.
        confidence: confidence level of the interval of which one end is used.
    """

    cap: int | None = None
    lr_exponent: float = 0.0
    measurements: int = 100
    confidence: float = 0.95

    def stage(self, run: RunSettings, batch_size: int) -> Stage:
        """Return the stage of a requested batch size, limited to the cap."""
        return scaled(run, capped(batch_size, self.cap), self.lr_exponent)

    def loop(
        self, run: RunSettings, looks_at: str, decide: Callable[[int, Observed], Stage], *, from_examples: int = 0
    ) -> ClosedLoop:
        """Return the rule, which starts with the batch size of the run."""
        return ClosedLoop(
            first=Stage(run.batch_size),
            looks_at=looks_at,
            decide=decide,
            measurements=self.measurements,
            from_examples=from_examples,
            confidence=self.confidence,
        )


def looking(*, without: tuple[str, ...] = (), **defaults: Any) -> Callable[[Callable[..., ClosedLoop]], Any]:
    """Decorate a rule ``(run, *, option=..., how: Looking)``: the fields of :class:`Looking` become its options.

    Args:
        without: fields that are not options of this rule.
        defaults: default values of fields that differ from those of the class.
    """

    def decorate(rule: Callable[..., ClosedLoop]) -> Callable[..., ClosedLoop]:
        own = inspect.signature(rule)
        common = {field.name: defaults.get(field.name, field.default) for field in fields(Looking)}
        common = {name: default for name, default in common.items() if name not in without}

        @functools.wraps(rule)
        def call(run: RunSettings, **given: Any) -> ClosedLoop:
            how = Looking(**{name: given.pop(name, default) for name, default in common.items()})
            cap_of(run, how.cap)
            exponent(how.lr_exponent)
            return rule(run, **given, how=how)

        kept = [parameter for name, parameter in own.parameters.items() if name != "how"]
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=common[name]) for name in common]
        call.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return call

    return decorate
