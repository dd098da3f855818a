"""What a search costs that starts from other results: right ones, ones that are off, and ones that mislead.

The worlds are those of :mod:`benchmarks.search_worlds`. The other results have an optimum at every batch size, which
is that of the world times a factor, or with the slope over the batch size turned round. ``python -m
benchmarks.warm_start [--replicates 20]``.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass

from benchmarks.search_worlds import SIZES, World, found, sweep
from sweeps.search.forecast import play
from sweeps.search.search import Search
from sweeps.spec.prior import Prior

ADAMW = "adamw"


@dataclass(frozen=True)
class Elsewhere:
    """Other results: their learning rates over those of the world at the middle batch size, and how they turn."""

    name: str
    factor: float = 1.0
    turn: float = 0.0
    sizes: tuple[int, ...] = SIZES

    def prior(self, world: World) -> Prior:
        middle = SIZES[len(SIZES) // 2]
        lrs = [world.best_lr(size) * self.factor * (size / middle) ** self.turn for size in self.sizes]
        return Prior(
            source="elsewhere",
            told="",
            batch_sizes=self.sizes,
            log_lrs=tuple(map(math.log, lrs)),
            variances=(0.02,) * len(lrs),
        )


KINDS = (
    Elsewhere("right"),
    Elsewhere("right, two batch sizes", sizes=(SIZES[2], SIZES[-2])),
    Elsewhere("twice too high", factor=2.0),
    Elsewhere("30 times too high", factor=30.0),
    Elsewhere("300 times too low", factor=1 / 300),
    Elsewhere("the slope turned round", turn=-1.0),
    Elsewhere("30 times too high and turned", factor=30.0, turn=-1.0),
)


def measure(world: World, kind: Elsewhere | None) -> dict[str, float]:
    """Trials, examples, share of the batch sizes with an interior optimum, and ln S lost against the best."""
    asked = sweep(world)
    if kind is not None:
        asked = asked.replace(warm_start={ADAMW: kind.prior(world)})
    search = Search(asked)
    played = play(search, world.end, workers=2)
    inside, _, true, _ = found(search, world)
    return {
        "trials": sum(played.trials.values()),
        "examples": played.examples,
        "inside": inside / len(SIZES),
        "lost": statistics.mean(true),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicates", type=int, default=20)
    asked = parser.parse_args()
    headings = ("best LR / default", "other results", "trials", "examples, over those without", "interior %", "lost %")
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for distance in (1.0, 30.0):
        worlds = [World(distance, 0.5, 0.03, number) for number in range(asked.replicates)]
        without = [measure(world, None) for world in worlds]
        for kind in (None, *KINDS):
            rows = [measure(world, kind) for world in worlds]
            ratios = [row["examples"] / base["examples"] for row, base in zip(rows, without, strict=True)]
            cells = [
                f"{distance:g}",
                kind.name if kind else "none",
                f"{statistics.median(row['trials'] for row in rows):.0f}",
                f"{statistics.median(ratios):.2f} (at most {max(ratios):.2f})",
                f"{100 * statistics.mean(row['inside'] for row in rows):.0f}",
                f"{100 * statistics.mean(row['lost'] for row in rows):.2f}",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
