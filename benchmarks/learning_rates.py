"""Does the search find the best learning rate? Simulated sweeps whose best one is known.

    python -m benchmarks.learning_rates [--sweeps 1]

The laws are those of the tests of the search: nine batch sizes, three seeds, ``ln S`` a parabola in the logarithm of
the learning rate, divergence at ten times the best one. Examples are relative to those of a plain grid: five learning
rates around the best one. The last line is of laws with a second, better optimum 64 times above, behind learning rates
that take up to three times the steps: how often it was missed, and what the analysis of these sweeps says.
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.estimate.diagnosis import Verdict
from benchmarks.answers import answer_of
from benchmarks.telling import head, line
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult
from sweeps.search.forecast import End, play
from sweeps.search.search import Search
from tests.sweeps.search_worlds import World, found, sweep

DISTANCES = (1 / 30, 1.0, 30.0, 1e3)  # The best learning rate over the optimizer's default
NOISES = (0.03, 0.1)
SLOPES = (0.0, 0.5, 1.0)  # Powers of the batch size that the best learning rate follows
# The second optimum: its learning rate over the first one's, and its steps over those there
FARTHER, FEWER = 64.0, 0.5


@dataclass(frozen=True)
class TwoOptima(World):
    """A law with a better optimum behind worse learning rates."""

    def end(self, config: TrialConfig) -> End:
        away = math.log(config.lr / self.best_lr(config.batch_size)) / math.log(FARTHER)
        if not 0.5 < away < 1.5:
            return super().end(config)
        near = math.log(FEWER) + self.curvature * (math.log(FARTHER) * (away - 1)) ** 2
        least = self.log_steps(config.batch_size, self.best_lr(config.batch_size))
        return End(math.exp(least + near))


def searched(world: World) -> tuple[Search, Sequence[TrialResult], float]:
    """The search of a world, played to its end, its trials, and its examples over those of a grid."""
    asked = sweep(world)
    played, axes = play(Search(asked), world.end, workers=2), asked.axes
    steps = {size: [world.log_steps(size, world.best_lr(size) * 2.0**octave) for octave in range(-2, 3)]
             for size in axes.batch_sizes}  # fmt: skip
    grid = len(axes.seeds) * sum(size * math.exp(each) for size, row in steps.items() for each in row)
    return Search(asked, played.results), played.results, played.examples / grid


def missed(numbers: Sequence[int]) -> list[Verdict]:
    """Verdicts of the sweeps that found the second optimum at no batch size."""
    verdicts = []
    for number in numbers:
        world = TwoOptima(1.0, 0.5, 0.03, number)
        search, trials, _ = searched(world)
        best = {key.batch_size: study.best for key, study in search.studies.items()}
        if all(at is not None and at[0] < world.best_lr(size) * math.sqrt(FARTHER) for size, at in best.items()):
            verdicts.append(answer_of(search.sweep, trials).verdict)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=1, help="of each distance, noise and power")
    asked = parser.parse_args()
    titles = "best rate over the default", "noise", "interior", "steps above the best, %", "trials"
    print(head((*titles, "examples over a grid's")))
    for distance in DISTANCES:
        for noise in NOISES:
            worlds = [World(distance, slope, noise, number) for slope in SLOPES for number in range(asked.sweeps)]
            ends = [(searched(world), world) for world in worlds]
            inside, above = zip(*(found(search, world) for (search, *_), world in ends), strict=True)
            studies = sum(len(search.studies) for (search, *_), _ in ends)
            more = 100 * math.expm1(statistics.mean(value for each in above for value in each))
            trials = statistics.median(len(results) for (_, results, _), _ in ends)
            share = statistics.median(share for (*_, share), _ in ends)
            found_at = f"{distance:.3g}", f"{noise:.0%}", f"{sum(inside)} of {studies}"
            print(line((*found_at, f"{more:.1f}", f"{trials:.0f}", f"{share:.2f}")), flush=True)
    verdicts = missed(range(10))
    said = ", ".join(f"{verdict}: {count}" for verdict, count in Counter(verdicts).most_common())
    print(
        f"a second, better optimum behind worse learning rates: missed in {len(verdicts)} of 10 sweeps; verdicts {said}"
    )


if __name__ == "__main__":
    main()
