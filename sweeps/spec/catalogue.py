"""The available optimizers with their options, learning rates and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from cbs.compute.device import bfloat16_time
from cbs.optimizers.base import OPTIMIZERS, OptimizerSpec, build_optimizer
from cbs.optimizers.problem import Problem, ProblemOptimizer
from cbs.trial.config import Choice
from cbs.workloads.text_parts import GPT, SIZES

REFERENCE_SIZE = "200k"
"""Size of the model on which optimizer state is measured: four blocks of width 64, matrices from 64 x 64 to 256 x
64."""

_VOCABULARY = 128


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
        batch = torch.randint(_VOCABULARY, (2, 9))
        optimizer = build_optimizer(Choice(name=name), model, OPTIMIZERS[name].lr_grid[0])
        if isinstance(optimizer, ProblemOptimizer):
            optimizer.attach(_problem(model))
            optimizer.observe(batch)
        _losses(_outputs(model, batch), batch).mean().backward()
        optimizer.step()
    tensors = {
        leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes()
        for leaf in tree_leaves(optimizer.state_dict())
        if isinstance(leaf, Tensor)
    }
    return sum(tensors.values()) / sum(parameter.numel() for parameter in model.parameters())


def _problem(model: nn.Module) -> Problem:
    return Problem(model=model, outputs=_outputs, output_losses=_losses, curvature_sample=_sample)


def _outputs(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch[:, :-1])


def _losses(outputs: Tensor, batch: Tensor) -> Tensor:
    return cross_entropy(outputs.mT, batch[:, 1:], reduction="none").mean(1)


def _sample(outputs: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
    # Only the shape matters here; the values have no influence on the size of the state.
    return torch.randn(outputs.shape, generator=generator)
