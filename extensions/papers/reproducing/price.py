"""Expected cost of a recipe: trials, examples, tokens, FLOPs and accelerator hours, see :mod:`sweeps.outlook.price`;
its data are not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cbs.registry.choices import Choice
from cbs.trial.target import Target
from cbs.workloads import build_workload
from extensions.papers.experiments.base import RecipeRun
from sweeps.launching.policies import parts
from sweeps.outlook.price import PEAK, UTILISATION, accelerator_hours, count_parameters, training_flops
from sweeps.outlook.remaining import outlook

_DATA = ("data", "validation", "tokenizer", "text_field", "dtype")
"""Options of a workload that say where its data are; its model can be built without them."""


@dataclass(frozen=True, kw_only=True)
class RunPrice:
    """Expected cost of a run of a recipe.

    Attributes:
        run: name of the run.
        parameters: number of parameters of the model as built.
        published: number of parameters that the paper gives; ``None`` if it gives none.
        trials: number of trials that the search is expected to run.
        examples: number of examples of all these trials.
        tokens: number of tokens of these examples; ``None`` if examples have no tokens.
        flops: 6 N D, with N parameters and D tokens; ``None`` without tokens.
    """

    run: str
    parameters: int
    published: float | None
    trials: int
    examples: float
    tokens: float | None
    flops: float | None

    def hours(self, rate: float = PEAK * UTILISATION) -> float | None:
        """Return the hours on one accelerator that achieves ``rate`` FLOP/s."""
        return None if self.flops is None else accelerator_hours(self.flops, rate)

    def to_json(self, rate: float) -> dict[str, Any]:
        return vars(self) | {"accelerator_hours": self.hours(rate)}


def prices(runs: Sequence[RecipeRun]) -> list[RunPrice]:
    """Return the cost of every run, without trials that its policy adds."""
    return [price(run) for run in runs]


def price(run: RecipeRun) -> RunPrice:
    """Return the cost of a run, from a simulation of its search, see :mod:`sweeps.outlook.remaining`."""
    sweep, tokens_per_example = run.sweep, run.tokens_per_example
    if run.model is None and tokens_per_example is None:
        workload = build_workload(without_data(sweep.trial.workload))
        tokens_per_example = workload.tokens_per_example
    if sweep.target is None:  # trials end at a budget; the target, which the simulation needs, has no effect
        sweep = sweep.replace(target=Target(metric="validation_loss", value=0.0))
    examples, trials = 0.0, 0
    for part in parts(sweep)[: 1 if sweep.shares_trials else None]:
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
    """Return the number of parameters of the model of a run."""
    build = run.model or build_workload(without_data(run.sweep.trial.workload)).build_model
    return count_parameters(build, without_embeddings=without_embeddings)


def without_data(workload: Choice) -> Choice:
    """Return the workload without the options that name its data; its model stays the same."""
    kept = {name: value for name, value in workload.options.items() if name not in _DATA}
    return replace(workload, options=kept)
