"""What an answer costs: simulated sweeps that find their own batch sizes, and end when the interval is narrow enough.

    python -m benchmarks.answers [--sweeps 500] [--first 0] [--precision 0.2] [--way found] [--jobs 2]

prints the tables of prices in ``docs/evidence.md``. Search, policy and analysis are those of ``cbs sweep``; only the
runs are drawn, from one of the smooth curves of :mod:`benchmarks.world_curves`. The critical batch size lies anywhere
from a third of the first batch sizes to thirty times beyond them; the best learning rate from 1/30 to 1000 times the
optimizer's default, and drifts with a power from 0 to 1 of the batch size, in half of the sweeps only up to the
critical batch size or so; twice the best learning rate costs 10 % more steps, or 3 to 100 %, as with optimizers that
were swept; seeds scatter by 3, 6 or 15 %, of which learning rates share most, and in every second sweep all batch
sizes of a seed :data:`COMMON` of the variance (.5 to .9 on the embedded text); in every third sweep runs diverge at 1.5
times the best learning rate, in the others at ten times.

``--way grid`` searches the eight sizes of a fixed grid on three seeds and then goes on in the same way. The other two
get as many examples as the sweep that finds its sizes took, and the same analysis: ``--way plain`` trains eight sizes,
five learning rates around the optimizer's default and three seeds, seed by seed; ``--way tpe`` lets Optuna's sampler
choose the learning rates of each of the eight sizes, with half of the examples, and repeats the best ones on other
seeds.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import functools
import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import Reading, estimates
from analysis.estimate.result import Answer
from analysis.estimate.studies import one_study
from analysis.read.groups import Group
from benchmarks.telling import head, holds, line
from benchmarks.world_curves import CRITICAL, Curve, Truth, falling, falling_exponent, log_tail, power, u_shaped
from cbs.registry.choices import Choice
from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement, TrialResult
from cbs.trial.target import Target
from sweeps.launching.loop import follow
from sweeps.launching.policies.precision import Precision
from sweeps.search.forecast import End, Played, play
from sweeps.search.forecast import ended as finished
from sweeps.search.pruning import TRIED, out_of_reach
from sweeps.search.search import Limits, Search
from sweeps.spec.axes import Axes, Cell
from sweeps.spec.spec import Sweep, prototype

CURVES: dict[str, Curve] = {
    "exponent 1": power(1.0),
    "exponent 0.85": power(0.85),
    "exponent 1.2": power(1.2),
    "steps fall by 5 % per e-fold": falling(0.05),
    "exponent falls from 1 to 0.6": falling_exponent,
    "logarithmic tail": log_tail,
    "U-shaped examples": u_shaped,
}
NOISES = (0.03, 0.06, 0.15)  # Of ln S over seeds: 3 to 8 % as of AdamW on the default text, 15 as of Muon
# Those of the default text, for the ways without a search
EIGHT = (4, 8, 16, 32, 64, 128, 256, 512)
FIRST_SIZES = (8, 32)  # The truth is drawn from a third of the smaller one to thirty times the larger one
DEFAULT_LR = 4e-3  # Any: only distances from it matter
BEND, UNLIKE = 0.2, 0.8
"""By how much ln S rises per squared e-fold away from the best learning rate, and the deviation of ln of that: of
sweeps of small models."""
SHARED = 0.8  # What learning rates of a batch size and seed share, in deviations of one run
COMMON = 0.6
"""Share of the variance of a run that all runs of its seed have in common, in every second sweep."""
MIN_STEPS, SLOWS = 200.0, 0.6  # Much as on the default text, where the fewest steps are 160 and progress slows down
TARGET = Target(metric="validation_loss", value=1.0)


@dataclass(frozen=True)
class World:
    """One optimizer on one problem, drawn by a number."""

    number: int

    @functools.cached_property
    def drawn(self) -> tuple[str, float, float, float, float]:
        """Curve, noise, least product, best learning rate there over the default, and the power of its drift."""
        rng = np.random.default_rng([self.number, 54])
        low, high = math.log(FIRST_SIZES[0] / 3), math.log(30 * FIRST_SIZES[-1])
        return (
            list(CURVES)[int(rng.integers(len(CURVES)))],
            NOISES[self.number % len(NOISES)],
            math.exp(rng.uniform(low, high)),
            math.exp(rng.uniform(math.log(1 / 30), math.log(1000))),
            float(rng.uniform(0.0, 1.0)),
        )

    @property
    def noise(self) -> float:
        return self.drawn[1]

    @property
    def truth(self) -> float:
        """Batch size of the least product."""
        return self.drawn[2]

    @property
    def cliff(self) -> float:
        """Ratio of a learning rate to the best one above which runs diverge."""
        return 1.5 if self.number % 9 // 3 == 0 else 10.0

    @functools.cached_property
    def curve(self) -> Truth:
        unit = Truth(curve=CURVES[self.drawn[0]], critical=CRITICAL, min_steps=MIN_STEPS)
        return Truth(curve=unit.curve, critical=CRITICAL * self.truth / unit.least_product, min_steps=MIN_STEPS)

    def steps(self, batch_size: float) -> float:
        """Steps at the best learning rate, without noise."""
        return float(self.curve.steps(np.array([float(batch_size)]))[0])

    @property
    def price(self) -> float:
        """Examples of one run at the critical batch size."""
        return self.truth * self.steps(self.truth)

    @functools.cached_property
    def basin(self) -> tuple[float, float]:
        """How bent ln S is around the best learning rate; and the least product over the batch size beyond which the
        best learning rate rises no more, 0 if there is none."""
        rng = np.random.default_rng([self.number, 55])
        bend = BEND * math.exp(UNLIKE * float(np.clip(rng.standard_normal(), -1.5, 2.5)))
        saturates = math.exp(-rng.uniform(-1.5, 1.5))
        return bend, saturates if self.number // 2 % 2 else 0.0

    def best_lr(self, batch_size: int) -> float:
        _, _, truth, distance, drift = self.drawn
        saturates = self.basin[1]
        return DEFAULT_LR * distance * ((saturates + 1) / (saturates + truth / batch_size)) ** drift

    def end(self, config: TrialConfig) -> End:
        gap = math.log(config.lr / self.best_lr(config.batch_size))
        if gap > math.log(self.cliff):
            return End(20.0, reached=False, distance=math.inf)
        cell = [self.number, config.batch_size, config.seed]
        shared, own = (
            np.random.default_rng(cell).standard_normal(),
            np.random.default_rng([*cell, int(config.lr * 1e9)]).standard_normal(),
        )
        common = COMMON if self.number % 2 else 0.0
        level = np.random.default_rng([self.number, config.seed]).standard_normal()
        apart = SHARED * shared + math.sqrt(1 - SHARED**2) * own
        draw = self.noise * (math.sqrt(common) * level + math.sqrt(1 - common) * apart)
        wanted = self.steps(config.batch_size) * math.exp(self.basin[0] * gap**2 + draw)
        if wanted > config.max_steps:
            steps = config.max_steps * (TRIED if out_of_reach(config, _line(config, wanted)) else 1.0)
            return End(steps, reached=False, distance=1.0 - (steps / wanted) ** SLOWS)
        return End(wanted)

    def sweep(self, batch_sizes: Sequence[int] = EIGHT) -> Sweep:
        return Sweep(
            name="simulated",
            trial=prototype(workload=Choice(name="noisy_quadratic"), target=TARGET, probe=None),
            axes=Axes(optimizers=(Choice(name="adamw"),), batch_sizes=tuple(batch_sizes), seeds=(0, 1, 2)),
            max_steps=round(10 * MIN_STEPS),
            max_examples=round(10 * MIN_STEPS * self.truth),
        )


def _line(config: TrialConfig, wanted: float) -> list[Measurement]:
    """Return the evaluations up to the step at which a run may be given up, of one that needs so many steps; it slows
    down as runs of a fortieth of the best learning rate do on the embedded text."""
    last = math.ceil(TRIED * config.max_steps)
    return [
        Measurement(
            step=step,
            examples=step * config.batch_size,
            value=2 - (step / wanted) ** SLOWS,
            train_loss=0.0,
            lr=config.lr,
        )
        for step in (0, last // 2, last)
    ]


def answer_of(
    sweep: Sweep, results: Sequence[TrialResult], resamples: int = 1000, options: Sequence[str] = ()
) -> Answer:
    """What an analysis of the trials of one optimizer says; ``options`` are those that may differ between trials."""
    choice, target = sweep.axes.optimizers[0], sweep.target
    assert target is not None
    group = Group(
        sweep="simulated", folder=Path(), workload="simulated", optimizer=choice.name, choice=sweep.axes.pooled(choice),
        workload_options={}, parameters=None, target=target, stops_at_target=True, prune_factor=sweep.prune_factor,
        example_unit="example", tokens_per_example=None, metric_unit="nats", manifest={"axes": {"lrs": None}},
        tuned=tuple(sweep.axes.tuned.get(choice.name, ())),
    )  # fmt: skip
    table = pd.DataFrame(
        {
            "batch_size": result.config.batch_size,
            "lr": result.config.lr,
            "seed": result.config.seed,
            "tuned": ", ".join(f"{name}={result.config.optimizer.options[name]}" for name in options),
            "status": str(result.status),
            "final_step": result.final_step,
            "steps": math.nan if result.steps_to_target is None else result.steps_to_target,
        }
        for result in results
    )
    parts = [(int(size), part) for size, part in table.groupby("batch_size")]
    studies = [one_study(group, size, part, target, part["steps"].to_numpy()) for size, part in parts]
    reading = Reading(target=target, studies=studies, not_reached="")
    return next(estimates(group, [reading], AnalysisConfig(resamples=resamples)))


class Simulated(Precision):
    """The policy, reading the trials of its simulated search."""

    def __init__(self, goal: float, finds: bool, world: World, runs: float | None = None) -> None:
        super().__init__(goal, finds=finds, runs=runs)
        self.world, self.played = world, Played()

    def run(self, sweep: Sweep, _: Path) -> Search:
        search = Search(sweep, self.played.results)
        ran = play(search, self.world.end, workers=2)
        self.played.results += ran.results
        self.played.examples += ran.examples
        return search

    def look(self, sweep: Sweep, folder: Path) -> dict[str, Answer]:
        self.answer = answer_of(sweep, self.played.results)
        return dict.fromkeys(sweep.choices, self.answer)


@dataclass(frozen=True)
class Ended:
    """How a sweep ended; its price is in runs at the critical batch size."""

    number: int
    verdict: str
    covered: bool
    width: float
    price: float
    trials: int
    rounds: int = 0
    sizes: tuple[int, ...] = ()
    why: str = ""


def ended(way: str, precision: float, number: int, runs: float | None = None) -> Ended:
    """Simulate one sweep."""
    world = World(number)
    policy = Simulated(precision, way != "grid", world, runs)
    with tempfile.TemporaryDirectory() as folder:
        follow(policy, world.sweep(), Path(folder), policy.run, Limits())
    answer, played = policy.answer, policy.played
    if way in RIVALS:
        results = RIVALS[way](world, played.examples)
        answer, played = answer_of(world.sweep(), results), Played(examples=played.examples, results=results)
    low, high = answer.interval
    return Ended(
        number,
        str(answer.verdict),
        holds(answer.interval, world.truth),
        math.log(high / low) / 2 if low and high else math.inf,
        played.examples / world.price,
        len(played.results),
        len(policy.rounds),
        tuple(sorted({result.config.batch_size for result in played.results})),
        "; ".join(policy.reasons.values()),
    )


def trained(world: World, batch_size: int, lr: float, seed: int) -> TrialResult:
    """One run to its end."""
    config = world.sweep().trial_at(Cell("adamw", batch_size, seed), lr)
    end = world.end(config)
    return finished(config, end, end.steps)


def plain(world: World, examples: float) -> list[TrialResult]:
    """A grid around the default learning rate, until the examples are spent."""
    results: list[TrialResult] = []
    for seed, octave, size in itertools.product(range(3), (0, 1, -1, 2, -2), EIGHT):
        if sum(result.final_examples for result in results) < examples:
            results.append(trained(world, size, DEFAULT_LR * 2.0**octave, seed))
    return results


def tpe(world: World, examples: float) -> list[TrialResult]:
    """Optuna's sampler at each batch size, and the best learning rates on other seeds."""
    import optuna  # python -m pip install optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    results: list[TrialResult] = []
    best: dict[int, float] = {}
    for size in EIGHT:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=world.number))
        spent = 0
        while spent < examples / 2 / len(EIGHT):
            trial = study.ask()
            lr = trial.suggest_float("lr", DEFAULT_LR / 1000, DEFAULT_LR * 1000, log=True)
            results.append(trained(world, size, lr, 0))
            spent += results[-1].final_examples
            study.tell(trial, results[-1].steps_to_target or 1e9)
        best[size] = study.best_params["lr"]
    for seed, size in itertools.product(range(1, 100), EIGHT):
        if sum(result.final_examples for result in results) < examples:
            results.append(trained(world, size, best[size], seed))
    return results


RIVALS = {"plain": plain, "tpe": tpe}


def row(name: str, found: Sequence[Ended], precision: float) -> str:
    ok = [one for one in found if one.verdict == "ok"]
    good = [one for one in ok if one.width <= precision]

    def share(part: Sequence[Ended]) -> float:
        return 100 * len(part) / max(len(found), 1)

    quantiles = np.quantile([one.price for one in found], [0.05, 0.5, 0.95])
    covered, silent = (
        share([one for one in part if one.covered is held]) for part, held in ((found, True), (ok, False))
    )
    middles = [np.median([getattr(one, each) for one in found]) for each in ("width", "trials", "rounds")]
    return line((
        name, f"{share(ok):.0f}", f"{share(good):.0f}", f"{covered:.1f}", f"{silent:.1f}", f"{middles[0]:.2f}",
        f"{quantiles[1]:.0f} ({quantiles[0]:.0f} to {quantiles[2]:.0f})", *(f"{each:.0f}" for each in middles[1:]),
    ))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--precision", type=float, default=0.2)
    parser.add_argument("--way", default="found", choices=("found", "grid", *RIVALS))
    parser.add_argument("--runs", type=float, help="price at which a sweep ends; default: that of cbs sweep")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--each", action="store_true", help="a line per sweep")
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.sweeps)
    with ProcessPoolExecutor(asked.jobs) as pool:
        found = list(
            pool.map(functools.partial(ended, asked.way, asked.precision, runs=asked.runs), numbers, chunksize=3)
        )
    if asked.each:
        for one in found:
            world = World(one.number)
            print(
                f"{one.number:4d} {world.drawn[0][:14]:14s} {world.noise:.2f} B {world.truth:6.1f} "
                f"lr {world.drawn[3]:8.3g} "
                f"w {one.width:.2f} price {one.price:6.1f} trials {one.trials:3d} rounds {one.rounds:2d} "
                f"{'' if one.covered else 'MISSED '}{one.verdict} {one.sizes} {one.why}"
            )
    shares = "`ok`, %", "and as narrow, %", "covered, %", "silent, %"
    print(head(("seeds scatter by", *shares, "half width", "runs at B_crit", "trials", "rounds")))
    for noise in NOISES:
        print(row(f"{100 * noise:.0f} %", [one for one in found if World(one.number).noise == noise], asked.precision))
    print(row("all", found, asked.precision))
    print(Counter(one.verdict for one in found))


if __name__ == "__main__":
    main()
