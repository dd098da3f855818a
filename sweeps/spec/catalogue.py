"""The available optimizers with their options, learning rates and memory, and how they are listed."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from cbs.compute.device import FAST_BFLOAT16, bfloat16_time
from cbs.errors import ConfigError
from cbs.optimizers.base import OPTIMIZERS, OptimizerSpec, build_optimizer
from cbs.optimizers.problem import Problem, ProblemOptimizer
from cbs.optimizers.routing import Routing, route
from cbs.optimizers.spectral import SMALL
from cbs.trial.config import Choice
from cbs.workloads.text_parts import GPT, SIZES
from sweeps.spec.overrides import typed
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built

REFERENCE_SIZE = "200k"
"""Size of the model on which optimizer state is measured: four blocks of width 64, matrices from 64 x 64 to 256 x
64."""

_VOCABULARY = 128  # Of that model; as many as there are ASCII bytes, as in the embedded text


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One optimizer as a listing shows it.

    Attributes:
        spec: the optimizer's entry in the registry.
        state_bytes_per_parameter: memory of the optimizer state, in addition to float32 weights and gradients, in bytes
            per parameter; for methods with matrix preconditioners it depends on the shapes, see :data:`REFERENCE_SIZE`.
            ``None`` if it was not measured.
        bfloat16_time: for optimizers with the option ``ns_dtype``, time of a matrix product in bfloat16 on this
            processor relative to float32; ``None`` if it was not measured.
    """

    spec: OptimizerSpec
    state_bytes_per_parameter: float | None
    bfloat16_time: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, lists and scalars."""
        shown = ("name", "family", "summary", "paper", "options_in_examples", "lr_grid", "geometry", "width_rule")
        return {
            **{name: getattr(self.spec, name) for name in shown},
            "options": self.spec.defaults,
            "published": dict(self.spec.published),
            "state_bytes_per_parameter": self.state_bytes_per_parameter,
            "bfloat16_time": self.bfloat16_time,
        }


def catalogue(names: Iterable[str] | None = None, *, measured: bool = True) -> list[Entry]:
    """Return the entries of some optimizers, by default of all that this package implements in files of their own.

    Args:
        names: names of the optimizers; ``None`` for all that this package implements.
        measured: whether to measure state and times, which takes a step of each optimizer on a small GPT.

    Raises:
        UnknownNameError: if an optimizer does not exist.
        ConfigError: if one cannot be built.
    """
    specs = [OPTIMIZERS[name] for name in (OPTIMIZERS.names() if names is None else names)]
    iterates = measured and any("ns_dtype" in spec.defaults for spec in specs)
    ratio = bfloat16_time() if iterates else None
    return [
        Entry(
            spec=spec,
            state_bytes_per_parameter=state_bytes_per_parameter(spec.name) if measured else None,
            bfloat16_time=ratio if "ns_dtype" in spec.defaults else None,
        )
        for spec in specs
    ]


def state_bytes_per_parameter(name: str) -> float:
    """Measure the bytes of an optimizer's state per parameter after one step with default options in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT(SIZES[REFERENCE_SIZE], _VOCABULARY)
        batch = torch.randint(_VOCABULARY, (2, 9))  # of any size: the state depends on the parameters alone
        optimizer = build_optimizer(Choice(name=name), model, OPTIMIZERS[name].lr_grid[0])
        if isinstance(optimizer, ProblemOptimizer):
            optimizer.attach(Problem(model=model, outputs=_outputs, output_losses=_losses, curvature_sample=_sample))
            optimizer.observe(batch)
        _losses(_outputs(model, batch), batch).mean().backward()
        optimizer.step()
    tensors = {
        leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes()
        for leaf in tree_leaves(optimizer.state_dict())
        if isinstance(leaf, Tensor)
    }
    return sum(tensors.values()) / sum(parameter.numel() for parameter in model.parameters())


def _outputs(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch[:, :-1])


def _losses(outputs: Tensor, batch: Tensor) -> Tensor:
    return cross_entropy(outputs.mT, batch[:, 1:], reduction="none").mean(1)


def _sample(outputs: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
    # Only the shape matters here; the values have no influence on the size of the state.
    return torch.randn(outputs.shape, generator=generator)


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
    published = {key: f" in a sweep, published with {typed(value)}" for key, value in spec.published.items()}
    rows = {
        "family": spec.family,
        "paper": spec.paper,
        "state": "not measured"
        if entry.state_bytes_per_parameter is None
        else f"{entry.state_bytes_per_parameter:.1f} bytes per parameter beside weights and gradients (float32)",
        "noise scale": f"geometry {spec.geometry}",
        "muP width rule": spec.width_rule,
        "learning rates": ", ".join(f"{lr:g}" for lr in spec.lr_grid),
        "options": "\n".join(f"{key} = {typed(value)}{published.get(key, '')}" for key, value in spec.defaults.items())
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
        table.add_row(Text(row.name), shape, part_of(row.is_matrix), row.reason)
    return table


def part_of(is_matrix: bool) -> str:
    """Return the part of the optimizer that trains a parameter, in a word."""
    return "matrix" if is_matrix else "rest"
