"""``cbs sweep --telescope`` as it is typed: what does not go with it, and what is printed of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cbs.errors import ConfigError
from cbs.parsing import parse_batch_sizes
from sweeps.spec import Sweep
from sweeps.telescoping import stages


def check_alone(*, adding: bool, axes: bool) -> None:
    """Refuse flags that do not go with widths.

    Args:
        adding: whether trials are to be added, or limited in time or examples.
        axes: whether something else than a grid of learning rates is to be searched.

    Raises:
        ConfigError: naming the flags to leave out.
    """
    if adding:
        raise ConfigError(
            "--telescope looks for learning rates, not for B_crit, in a given number of trials: leave it out, or "
            "--precision, --auto, --max-time and --max-examples"
        )
    if axes:
        raise ConfigError("--telescope carries learning rates alone, on grids: leave out --axis, --from and --search")


def foretold(sweep: Sweep, widths: str, output: Path) -> tuple[dict[str, Any], list[str]]:
    """What would be trained, see :func:`sweeps.telescoping.stages.planned`, as plain JSON values and as lines; widths
    as they are typed."""
    report = stages.planned(sweep, parse_batch_sizes(widths, "--telescope"), output)
    return report, stages.planned_lines(report)


def telescoped(sweep: Sweep, widths: str, output: Path, **running: Any) -> tuple[dict[str, Any], list[str]]:
    """What :func:`sweeps.telescoping.stages.telescope` found, likewise; ``running`` says how trials are run."""
    report = stages.telescope(sweep, parse_batch_sizes(widths, "--telescope"), output, **running)
    return report, stages.report_lines(report)
