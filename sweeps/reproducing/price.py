"""What a recipe costs before it is run: trials, examples, tokens, FLOPs and hours of accelerators, see
:mod:`sweeps.outlook.compute`; its data are not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cbs.registry.choices import Choice
from cbs.trial.target import Target
from cbs.workloads import build_workload
from sweeps.outlook.compute import PEAK, UTILISATION, accelerator_hours, count_parameters, training_flops
from sweeps.outlook.remaining import outlook
from sweeps.papers.base import RecipeRun

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
        return None if self.flops is None else accelerator_hours(self.flops, peak, utilisation)

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
    parameters = parameters_of(run)
    return RunPrice(
        run=run.name,
        parameters=parameters,
        published=run.parameters,
        trials=trials,
        examples=examples,
        tokens=tokens,
        flops=None if tokens is None else training_flops(parameters, tokens),
    )


def parameters_of(run: RecipeRun, *, without_embeddings: bool = False) -> int:
    """Parameters of the model of a run."""
    build = run.model or build_workload(without_data(run.sweep.workload)).build_model
    return count_parameters(build, without_embeddings=without_embeddings)


def without_data(workload: Choice) -> Choice:
    """The workload on the data that it brings along, with the model of the one it is."""
    kept = {name: value for name, value in workload.options.items() if name not in _DATA}
    return replace(workload, options=kept)
