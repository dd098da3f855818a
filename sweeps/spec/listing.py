"""Listings of the optimizers that a sweep can use."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cbs.compute.device import FAST_BFLOAT16
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, OptimizerSpec
from cbs.optimizers.routing import Routing, route
from cbs.optimizers.spectral.orthogonalization import SMALL
from sweeps.spec.catalogue import Entry
from sweeps.spec.overrides import typed
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built


def overview(entries: Iterable[Entry]) -> RenderableType:
    """Return a table with one line per optimizer, by family: state, noise-scale geometry, learning rates and paper."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("optimizer", overflow="fold", max_width=24)
    table.add_column("bytes/\nparam", justify="right")
    table.add_column("noise\nscale", no_wrap=True)
    table.add_column("learning\nrates", no_wrap=True)
    table.add_column("paper", overflow="fold", ratio=1)
    ordered = sorted(entries, key=lambda entry: (entry.spec.family, entry.spec.name))
    for family, members in groupby(ordered, key=lambda entry: entry.spec.family):
        table.add_row(Text(family, style="bold"))
        for entry in members:
            table.add_row(
                Text(f"  {entry.spec.name}"),
                "" if entry.state_bytes_per_parameter is None else f"{entry.state_bytes_per_parameter:.1f}",
                entry.spec.geometry,
                f"{entry.spec.lr_grid[0]:.2g}..{entry.spec.lr_grid[-1]:.2g}",
                Text(entry.spec.paper),
            )
    return table


def details(entry: Entry) -> RenderableType:
    """Return everything about one optimizer."""
    spec = entry.spec
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "family": spec.family,
        "paper": spec.paper,
        "state": "not measured"
        if entry.state_bytes_per_parameter is None
        else f"{entry.state_bytes_per_parameter:.1f} bytes per parameter beside weights and gradients (float32)",
        "noise scale": f"geometry {spec.geometry}",
        "muP width rule": spec.width_rule,
        "learning rates": ", ".join(f"{lr:g}" for lr in spec.lr_grid),
        "options": "\n".join(f"{key} = {typed(value)}{_published(spec, key)}" for key, value in spec.defaults.items())
        or "none",
        "in examples": "\n".join(spec.options_in_examples) or "none",
    }
    if entry.bfloat16_time is not None:
        auto = f"bfloat16 for matrices of more than {SMALL:,} entries" if FAST_BFLOAT16 else "float32"
        rows["ns_dtype"] = (
            f"auto is {auto} on this processor, where a product in bfloat16 takes {entry.bfloat16_time:.2g} times "
            "what it takes in float32 (measured now)"
        )
    for name, value in rows.items():
        table.add_row(name, Text(value))
    use = f"cbs sweep --optim {spec.name}"
    if spec.defaults:
        key, value = next(iter((spec.published or spec.defaults).items()))
        use += f" --set '{spec.name}.{key}={typed(value)}'"
    return Group(Text(f"{spec.name}: {spec.summary}"), "", table, "", Text(f"use: {use}"))


def _published(spec: OptimizerSpec, option: str) -> str:
    if option not in spec.published:
        return ""
    return f" in a sweep, published with {typed(spec.published[option])}"


def routed(sweep: Sweep) -> dict[str, Routing]:
    """Return how the parameters of the workload's model are split, for each optimizer that treats matrices specially.

    Raises:
        ConfigError: if no optimizer does, or the workload or the option ``matrices`` is invalid.
    """
    routings = {}
    with torch.random.fork_rng(devices=[]):
        for choice in sweep.axes.optimizers:
            options = OPTIMIZERS[choice.name].defaults | choice.options
            if "matrices" in options:
                try:
                    routings[choice.name] = route(built(sweep.trial.workload).build_model(), options["matrices"])
                except ValueError as error:
                    raise ConfigError(f"optimizer {choice.name!r} refuses its options: {error}") from None
    if not routings:
        names = " and ".join(choice.name for choice in sweep.axes.optimizers)
        raise ConfigError(f"{names}: all parameters are treated alike, so there is nothing to show for a workload")
    return routings


def routing_table(routing: Routing) -> RenderableType:
    """Return a table of the part that every parameter of a model belongs to, and why."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("parameter", "shape", "part", "why"):
        table.add_column(column, overflow="fold")
    for row in routing.routes:
        shape = " x ".join(map(str, row.parameter.shape))
        table.add_row(Text(row.name), shape, _part(row.is_matrix), row.reason)
    return table


def routing_json(routing: Routing) -> dict[str, dict[str, str]]:
    """Return the content of :func:`routing_table` as plain dictionaries, by parameter."""
    return {row.name: {"part": _part(row.is_matrix), "why": row.reason} for row in routing.routes}


def _part(is_matrix: bool) -> str:
    return "matrix" if is_matrix else "rest"
