"""What a recipe costs before it is run: trials, examples, tokens, FLOPs and hours of accelerators.

FLOPs are 6 N D, forward and backward pass of a dense model of N parameters over D tokens (Kaplan et al. 2020, section
2.1). N counts every parameter of the model, which is built on torch's meta device and takes no memory; its data are
not read. Where an example has no tokens the rule does not hold, and there are no FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from cbs.registry.choices import Choice
from cbs.trial.target import Target
from cbs.workloads import build_workload
from sweeps.outlook.remaining import outlook
from sweeps.papers.base import RecipeRun

FLOPS_PER_PARAMETER_AND_TOKEN = 6

PEAK, UTILISATION = 989e12, 0.4
"""Of one H100 in bfloat16 without sparsity, in FLOPs per second (its data sheet); and the share of it that is used."""

_DATA = ("data", "validation", "tokenizer", "text_field", "dtype")
"""Options of a workload that say where its data are, which a model does without."""


@dataclass(frozen=True, kw_only=True)
class RunPrice:
    """What a run of a recipe is expected to take.

    Attributes:
        parameters: of its model, as it is built.
        published: number of parameters that the paper names.
        trials: that the search is expected to run.
        examples: of all of them.
        tokens: likewise; ``None`` where an example has none.
        flops: 6 N D; ``None`` without tokens.
    """

    run: str
    parameters: int
    published: float | None
    trials: int
    examples: float
    tokens: float | None
    flops: float | None

    def hours(self, peak: float = PEAK, utilisation: float = UTILISATION) -> float | None:
        """Hours of one accelerator with a peak in FLOPs per second, of which a share is used."""
        return None if self.flops is None else self.flops / (peak * utilisation) / 3600.0

    def to_json(self, peak: float, utilisation: float) -> dict[str, Any]:
        return vars(self) | {"accelerator_hours": self.hours(peak, utilisation)}


def prices(runs: Sequence[RecipeRun]) -> list[RunPrice]:
    """The price of every run, without what a policy adds to it."""
    return [price(run) for run in runs]


def price(run: RecipeRun) -> RunPrice:
    """The price of one run, by playing its search through, see :mod:`sweeps.outlook.remaining`."""
    sweep, tokens_per_example = run.sweep, run.tokens_per_example
    if run.model is None and tokens_per_example is None:
        workload = build_workload(without_data(sweep.workload))
        tokens_per_example = workload.tokens_per_example
    if sweep.target is None:  # trials go to a budget, whatever it is
        sweep = sweep.replace(target=Target(metric="validation_loss", value=0.0))
    examples, trials = 0.0, 0
    parts = sweep.parts[:1] if sweep.shares_trials else sweep.parts
    for part in parts:
        _, played = outlook(part, (), None, workers=1)
        examples, trials = examples + played.examples, trials + len(played.results)
    tokens = None if tokens_per_example is None else examples * tokens_per_example
    parameters = count_parameters(run)
    return RunPrice(
        run=run.name,
        parameters=parameters,
        published=run.parameters,
        trials=trials,
        examples=examples,
        tokens=tokens,
        flops=None if tokens is None else FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens,
    )


def count_parameters(run: RecipeRun, *, without_embeddings: bool = False) -> int:
    """Parameters of the model of a run, each counted once, built without memory for them."""
    build = run.model or build_workload(without_data(run.sweep.workload)).build_model
    with torch.device("meta"):
        model = build()
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    left_out = sum(table.numel() for table in tables) if without_embeddings else 0
    return sum(parameter.numel() for parameter in model.parameters()) - left_out


def without_data(workload: Choice) -> Choice:
    """The workload on the data that it brings along, with the model of the one it is."""
    kept = {name: value for name, value in workload.options.items() if name not in _DATA}
    return replace(workload, options=kept)
