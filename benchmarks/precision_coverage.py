"""Whether the interval of the critical batch size still holds the truth where a sweep ends because it is narrow:
``cbs sweep --precision`` on simulated laws.

An interval that is looked at again and again, until it is narrow, is narrow by luck now and then. The worlds are those
of :mod:`benchmarks.search_worlds`, at few batch sizes, so that rounds are needed; trials are stored and
read as those of a sweep are. Beside it stands the same sweep before its first round. ``python -m
benchmarks.precision_coverage [--replicates 200]``.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.search_worlds import MIN_EXAMPLES, MIN_STEPS, World, sweep
from cbs.trial.config import TrialConfig
from cbs.trial.store import Store
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.loop import follow
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.rounds import Rounds
from sweeps.search.forecast import End, play
from sweeps.search.limits import Limits
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep

TRUTH = MIN_EXAMPLES / MIN_STEPS
FEW = (4, 16, 64, 256, 1024)
CASES = ((0.10, 0.15), (0.03, 0.05), (0.10, 0.25))
"""Seed noise and half-width asked for."""


def trainer(folder: Path, end_of: Callable[[TrialConfig], End], most: int | None = None) -> Callable[[Sweep], Search]:
    """What :func:`sweeps.launching.launch.sweep` does, by a law: results are read from the folder and stored there.

    Args:
        folder: of the sweep.
        end_of: see :func:`sweeps.search.forecast.play`.
        most: trials over all calls, after which none starts any more, as if killed.
    """
    store, left = Store(folder), [math.inf if most is None else most]

    def train(part: Sweep) -> Search:
        store.prepare()
        store.write_manifest(merged_manifest(store, part, "cbs sweep"))
        search = Search(part, [r for r in store.results() if r.status.final])
        played = play(search, end_of, workers=2, most=None if math.isinf(left[0]) else int(left[0]))
        left[0] -= len(played.results)
        for result in played.results:
            store.save(result)
        for cell in search.cells() if search.done else ():
            for changed in search.settled(cell):
                store.update_record(changed)
        return search

    return train


def to_precision(
    asked: Sweep,
    goal: float | None,
    folder: Path,
    train: Callable[[Sweep], Search],
    *,
    limits: Limits | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Rounds:
    """What ``cbs sweep --precision`` does, or ``--auto`` where there is no goal, with ``train`` in the place of Ray."""
    policy = POLICIES["both_sides"]() if goal is None else POLICIES["precision"](goal)  # type: ignore[call-arg]
    assert isinstance(policy, Rounds)
    follow(policy, asked, folder, lambda part, _: train(part), limits or Limits(), say)
    return policy


def run(world: World, goal: float, seeds: int, folder: Path) -> Rounds:
    small = sweep(world).replace(batch_sizes=FEW, seeds=tuple(range(seeds)))
    return to_precision(small, goal, folder, trainer(folder, world.end))


def replicate(world: World, goal: float, seeds: int) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The first and the last look, and the rounds in between."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        rounds = run(world, goal, seeds, Path(folder)).rounds
    return rounds[0], rounds[-1], len(rounds) - 1


def covered(entry: dict[str, Any]) -> bool:
    low, high = entry["estimates"][0]["interval"]
    return (low is None or low <= TRUTH) and (high is None or high >= TRUTH)


def width(entry: dict[str, Any]) -> float:
    return entry["estimates"][0]["half_width"] or math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    headings = (
        "seed noise", "asked", "coverage %", "before %", "half-width", "before", "reached %", "rounds", "examples",
    )  # fmt: skip
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for noise, goal in CASES:
        found = [replicate(World(1.0, 0.5, noise, number), goal, asked.seeds) for number in range(asked.replicates)]
        first, last, rounds = zip(*found, strict=True)
        cells = [
            f"{100 * noise:g} %",
            f"{goal:g}",
            *(f"{100 * statistics.mean(map(covered, looks)):.1f}" for looks in (last, first)),
            *(f"{statistics.median(map(width, looks)):.3f}" for looks in (last, first)),
            f"{100 * statistics.mean(width(look) <= goal for look in last):.0f}",
            f"{statistics.mean(rounds):.1f}",
            f"x {statistics.median(b['examples'] / a['examples'] for a, b in zip(first, last, strict=True)):.1f}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
