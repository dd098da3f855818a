"""What an answer costs before its first trial: in runs at the critical batch size, GPU-hours and dollars.

An answer is a critical batch size B_crit known within 35, 20 or 10 %, half the width of its logarithm's interval. How
many runs at B_crit it takes was measured on simulated sweeps; what one such run takes follows from what is known of the
workload. On the hyperbola E = E_min (1 + B/B_crit), a run at B_crit sees 2 E_min examples in 2 S_min steps. Whatever is
unknown is ``None``, never a guess.

Where a sweep is out of reach, measurements on a single run remain. They are priced in the same
unit and need only the number of steps of a run at B_crit.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from analysis.formatting import duration, number
from cbs.errors import ConfigError
from cbs.registry.extensions import load, modules
from cbs.workloads import WORKLOADS
from sweeps.outlook.cost import Cost
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep
from sweeps.spec.workload import built

# Of the forward and the backward pass of a dense model (Kaplan et al. 2020, section 2.1).
FLOPS_PER_PARAMETER_AND_TOKEN = 6

# FLOP/s of one H100 in bfloat16 without sparsity (its data sheet), and the fraction of them that training achieves
PEAK, UTILISATION = 989e12, 0.4


def training_flops(parameters: int, tokens: float) -> float:
    """Return 6 N D, with N ``parameters`` and D ``tokens``."""
    return FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens


def accelerator_hours(flops: float, rate: float = PEAK * UTILISATION) -> float:
    """Return the hours on one accelerator that achieves ``rate`` FLOP/s."""
    return flops / rate / 3600.0


def count_parameters(build: Callable[[], nn.Module], *, without_embeddings: bool = False) -> int:
    """Return the number of parameters of a model, shared ones counted once; it is built without memory for them."""
    with torch.device("meta"):
        model = build()
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    left_out = sum(table.numel() for table in tables) if without_embeddings else 0
    return sum(parameter.numel() for parameter in model.parameters()) - left_out


Range = tuple[float, float, float]
"""A low, an expected and a high value."""

# Runs at B_crit that an answer takes for each optimizer, by half width of ln B_crit: mean, and quantiles 5 and 95 % of
# `benchmarks.answers` where seeds scatter by 3 and 6 %, as those of language models do (35 %: 160 sweeps; 20 %: 334;
# 10 %, without `--max-runs`: 80). Of sweeps to 20 % one in twenty takes more than twice the mean, the median is 28.
RUNS: Mapping[float, Range] = {0.35: (14, 24, 41), 0.2: (16, 33, 65), 0.1: (24, 85, 220)}

# GPU-hours for 20 % and parameters of a model beyond which the measurements on a single run are named, too
OUT_OF_REACH, LARGE = 10_000.0, 1e9

_LEAST = 0.01  # Amounts below this are printed as such


@dataclass(frozen=True)
class CriticalRun:
    """What a run at B_crit takes, one of each optimizer together. Each field is ``None`` if unknown.

    Attributes:
        examples: number of examples, 2 E_min of every optimizer; the budgets if trials train to budgets.
        steps: number of steps, 2 S_min, the least of all optimizers.
        parameters: number of parameters of the model.
        flops: 6 N D, with N parameters and D tokens.
        seconds: seconds on this machine, one trial at a time, from timed steps or finished trials.
        gpu_hours: hours on a GPU, from steps timed on one here, or else from ``flops``.
    """

    examples: float | None = None
    steps: float | None = None
    parameters: int | None = None
    flops: float | None = None
    seconds: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Price:
    """What a measurement costs, each as a :data:`Range`, or ``None`` if unknown.

    Attributes:
        runs: runs at B_crit of each optimizer.
        examples: examples of all optimizers together, as are the following.
        flops: FLOPs of the training.
        gpu_hours: hours on one GPU.
        seconds: seconds on this machine, one trial at a time.
        dollars: ``gpu_hours`` at the price of an hour.
    """

    runs: Range
    examples: Range | None = None
    flops: Range | None = None
    gpu_hours: Range | None = None
    seconds: Range | None = None
    dollars: Range | None = None


def price(runs: Range, run: CriticalRun, gpu_hour: float | None = None, *, work: float = 1.0) -> Price:
    """Return the price of a number of runs at B_crit.

    Args:
        runs: number of runs.
        run: what one takes.
        gpu_hour: dollars for an hour of a GPU; ``None`` if not given.
        work: compute of a step relative to one of plain training.

    Example:
        >>> price((20, 40, 80), CriticalRun(gpu_hours=1.5), gpu_hour=2.0).dollars
        (60.0, 120.0, 240.0)
    """
    low, expected, high = runs

    def times(amount: float | None, factor: float = work) -> Range | None:
        return None if amount is None else (low * amount * factor, expected * amount * factor, high * amount * factor)

    dollars = None if gpu_hour is None or run.gpu_hours is None else run.gpu_hours * gpu_hour
    return Price(
        runs, times(run.examples, 1.0), times(run.flops), times(run.gpu_hours), times(run.seconds), times(dollars)
    )


@dataclass(frozen=True)
class Instead:
    """A measurement on a single run, in place of a sweep that is out of reach; ``INSTEAD`` in the module ``prices`` of
    an extension is one.

    Attributes:
        command: the command.
        about: what is priced, in a few words.
        price: function of a run at B_crit and of the dollars for an hour of a GPU.
    """

    command: str
    about: str
    price: Callable[[CriticalRun, float | None], Price | None]


def measurements() -> list[Instead]:
    """Return what can be measured on a single run."""
    return [load(module).INSTEAD for module, _ in modules("prices")]


def critical_run(search: Search, cost: Cost | None) -> CriticalRun:
    """Return what is known of a run at B_crit.

    E_min and S_min come from finished trials once they reached the target at two batch sizes, or else from what the
    recipe expects.

    Args:
        search: search of the sweep with its finished trials.
        cost: cost of steps measured on this machine; ``None`` if trials run elsewhere.
    """
    sweep = search.sweep
    asymptotes = {} if sweep.budgets else {text: _hyperbola(search, text) or sweep.expected for text in sweep.choices}
    examples: dict[str, float | None] = dict.fromkeys(sweep.choices, float(sum(sweep.budgets)) or None)
    steps: dict[str, float | None] = dict.fromkeys(sweep.choices)
    for text, known in asymptotes.items():
        if known is not None:
            steps[text], examples[text] = 2 * known[0] or None, 2 * known[1]
    seen = _total(examples.values())
    model = model_of(search, cost)
    flops = None if model is None or seen is None else training_flops(model[0], seen * model[1])
    seconds = {text: _seconds(search, cost, text, examples[text], steps[text]) for text in sweep.choices}
    all_seconds = _total(seconds.values())
    hours = None if flops is None else accelerator_hours(flops)
    return CriticalRun(
        examples=seen,
        steps=None if _total(steps.values()) is None else min(filter(None, steps.values())),
        parameters=None if model is None else model[0],
        flops=flops,
        seconds=all_seconds,
        gpu_hours=all_seconds / 3600.0 if cost is not None and cost.on_gpu and all_seconds is not None else hours,
    )


def _hyperbola(search: Search, optimizer: str) -> tuple[float, float] | None:
    """Return ``(min_steps, min_examples)``, nonnegative and fitted by least squares of relative errors to the best
    steps so far; ``None`` if fewer than two batch sizes reached the target, or the steps do not fall."""
    studies = [study for key, study in search.studies.items() if key.optimizer == optimizer]
    best = {study.batch_size: study.best[1] for study in studies if study.best is not None}
    if len(best) < 2:
        return None
    sizes, steps = np.array(list(best), dtype=float), np.array(list(best.values()))
    from scipy.optimize import nnls  # importing it takes a second, so not at every start

    (min_steps, min_examples), _ = nnls(np.stack([1 / steps, 1 / (sizes * steps)], axis=1), np.ones(len(steps)))
    return (float(min_steps), float(min_examples)) if min_examples > 0 else None


def on_processor(search: Search, cost: Cost | None) -> bool:
    """Return whether no trial runs on a GPU, whose hours would then be no hours of this sweep."""
    return search.sweep.trial.device == "cpu" or (cost is not None and not cost.on_gpu)


def model_of(search: Search, cost: Cost | None) -> tuple[int, float] | None:
    """Return the numbers of parameters and of tokens per example, from a finished trial or the workload; ``None`` if
    examples have no tokens, or the workload is not one of this package, whose code is not run for it."""
    for result in search.trials():
        if (ran := result.workload) is not None and ran.parameters and ran.tokens_per_example:
            return ran.parameters, ran.tokens_per_example
    workload = built(search.sweep.trial.workload) if search.sweep.trial.workload.name in WORKLOADS else None
    if workload is None or workload.tokens_per_example is None:
        return None
    # building a model on the meta device imports a third of torch, which takes a second
    parameters = (cost and cost.parameters) or count_parameters(workload.build_model)
    return parameters, workload.tokens_per_example


def _seconds(
    search: Search, cost: Cost | None, optimizer: str, examples: float | None, steps: float | None
) -> float | None:
    """Return the seconds of a run, from timed steps or else at the pace of finished trials."""
    sweep = search.sweep
    if examples is None:
        return None
    if cost is not None and optimizer in cost.steps:
        middle = math.sqrt(sweep.axes.batch_sizes[0] * sweep.axes.batch_sizes[-1])
        size = max(1, round(middle if steps is None else examples / steps))
        return cost.steps[optimizer].seconds(size, examples / size, sweep.trial.evaluation)
    took = [(float(trial.timing.get("seconds") or 0.0), trial.final_examples) for trial in search.trials()]
    timed = [(seconds, seen) for seconds, seen in took if 0 < seconds < math.inf and seen]
    return examples * sum(each for each, _ in timed) / sum(seen for _, seen in timed) if timed else None


def _total(amounts: Collection[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def checked_gpu_hour(dollars: float | None) -> float | None:
    """Return the price of an hour of a GPU.

    Raises:
        ConfigError: if it is not a number above 0.
    """
    if dollars is not None and not 0 < dollars < math.inf:
        raise ConfigError(f"--set gpu_hour: expected dollars above 0 for an hour of a GPU, got {dollars:g}")
    return dollars


def price_report(
    search: Search, cost: Cost | None, workers: int, gpu_hour: float | None = None, goal: float | None = None
) -> dict[str, Any]:
    """Return the price of an answer as plain JSON values.

    ``run`` is the :class:`CriticalRun`, ``within`` the :class:`Price` by half width, and ``instead`` the prices of
    :func:`measurements` where the sweep is out of reach, otherwise ``None``.

    Args:
        search: search of the sweep with its finished trials.
        cost: cost of steps measured on this machine; ``None`` if trials run elsewhere.
        workers: number of trials at a time.
        gpu_hour: dollars for an hour of a GPU; ``None`` if not given.
        goal: half width that is sought, ``None`` for the usual one; priced are it and the next, if they were simulated.
    """
    run = critical_run(search, cost)
    hours = price(RUNS[Sweep.usual_precision], run).gpu_hours
    far = (hours is not None and hours[1] > OUT_OF_REACH) or (run.parameters or 0) > LARGE
    if gpu_hour is None and on_processor(search, cost):
        run = replace(run, gpu_hours=None)
    sought = [each for each in RUNS if each <= (goal or Sweep.usual_precision)] or [min(RUNS)]
    within = {str(each): price(RUNS[each], run, gpu_hour) for each in sought[:2]}
    instead = {each.command: each.price(run, gpu_hour) for each in measurements()} if far else {}
    return {
        "run": asdict(run),
        "within": {goal: asdict(each) for goal, each in within.items()},
        "instead": {name: each and asdict(each) for name, each in instead.items()} or None,
        "gpu_hour": gpu_hour,
        "workers": max(workers, 1),
        "optimizers": len(search.sweep.choices),
        "budgets": bool(search.sweep.budgets),
    }


def price_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines to print for :func:`price_report`: one, and a second one where the sweep is out of reach."""
    run = report["run"]
    each = " of each optimizer" if report["optimizers"] > 1 else ""
    unit = "runs of the budget" if report["budgets"] else "runs at B_crit"
    answers = [
        f"{float(goal):.0%}: " + ", ".join([f"{span(cost['runs'])} {unit}{each}", *_costs(cost, report)])
        for goal, cost in report["within"].items()
    ]
    unknown = ""
    if run["examples"] is None:
        unknown = "; the examples of such a run are known once trials have reached the target at two batch sizes"
    elif report["gpu_hour"] is not None and run["gpu_hours"] is None:
        unknown = "; no dollars, as the hours on a GPU are unknown"
    yield f"price         B_crit within {'; within '.join(answers)}{unknown}"
    if report["instead"] is None:
        return
    about = {each.command: each.about for each in measurements()}
    shares = []
    for name, cost in report["instead"].items():
        costs = [] if cost is None else [f"{span(cost['runs'])} {unit}{each}", *_costs(cost, report)]
        shares.append(f"{name} {', '.join(costs) or 'a part of one run'} ({about[name]})")
    yield f"instead       {'; '.join(shares)}"


FEWEST_HOURS = 0.01  # GPU-hours below which nobody would train on a GPU, and none are said


def _costs(cost: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a price amounts to beside runs: the time on this machine if steps were timed, else GPU-hours, and
    dollars."""
    if cost["seconds"] is not None:
        low, expected, high = (duration(seconds / report["workers"]) for seconds in cost["seconds"])
        yield f"{expected} [{low}, {high}] here"
    hours, asked = cost["gpu_hours"], report["gpu_hour"] is not None
    if hours is not None and (asked or (cost["seconds"] is None and hours[1] >= FEWEST_HOURS)):
        yield f"{span(cost['gpu_hours'])} GPU-hours"
    if cost["dollars"] is not None:
        yield f"{span(cost['dollars'])} dollars"


def span(values: Range) -> str:
    """Format a range as its expected value and both ends, two digits each; a range of one value as this.

    Example:
        >>> span((0.123, 52.4, 168_000.0)), span((3.0, 3.0, 3.0)), span((1e-5, 2e-5, 4e-5))
        ('52 [0.12, 170,000]', '3', 'under 0.01')
    """
    if values[-1] < _LEAST:
        return f"under {_LEAST:g}"
    low, expected, high = (number(float(f"{value:.2g}"), 2) for value in values)
    return expected if low == high else f"{expected} [{low}, {high}]"
