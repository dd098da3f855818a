"""What a person sees of the optimizers a sweep can name."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cbs.optimizers.catalogue import Entry


def overview(entries: Iterable[Entry]) -> RenderableType:
    """One line for each optimizer: state, geometry of the noise scale, learning rates and paper, by family."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("optimizer", overflow="fold", max_width=24)
    table.add_column("bytes/\nparam", justify="right")
    table.add_column("noise\nscale", no_wrap=True)
    table.add_column("learning\nrates", no_wrap=True)
    table.add_column("paper", overflow="fold", ratio=1)
    ordered = sorted(entries, key=lambda entry: (entry.family, entry.name))
    for family, members in groupby(ordered, key=lambda entry: entry.family):
        table.add_row(Text(family, style="bold"))
        for entry in members:
            table.add_row(
                Text(f"  {entry.name}"),
                "" if entry.state_bytes_per_parameter is None else f"{entry.state_bytes_per_parameter:.1f}",
                entry.geometry,
                f"{entry.lr_grid[0]:.2g}..{entry.lr_grid[-1]:.2g}",
                Text(entry.paper),
            )
    return table


def details(entry: Entry) -> RenderableType:
    """Everything about one optimizer."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "family": entry.family,
        "paper": entry.paper,
        "state": "not measured"
        if entry.state_bytes_per_parameter is None
        else f"{entry.state_bytes_per_parameter:.1f} bytes per parameter beside weights and gradients (float32)",
        "noise scale": f"geometry {entry.geometry}",
        "muP width rule": entry.width_rule,
        "learning rates": ", ".join(f"{lr:g}" for lr in entry.lr_grid),
        "options": "\n".join(f"{key} = {_shown(value)}" for key, value in entry.options.items()) or "none",
        "in examples": "\n".join(entry.options_in_examples) or "none",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    use = f"cbs sweep --optim {entry.name}"
    if entry.options:
        key, value = next(iter(entry.options.items()))
        use += f" --set '{entry.name}.{key}={_shown(value)}'"
    return Group(Text(f"{entry.name}: {entry.summary}"), "", table, "", Text(f"use: {use}"))


def _shown(value: object) -> str:
    """As ``--set`` takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_shown(part) for part in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
