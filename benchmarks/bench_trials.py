"""What a trial costs that trains almost nothing: 2,000 of them through the real Ray Tune, on two workers.

Wall-clock seconds per trial in hundreds, memory of the driver, files it leaves, and seconds until the first trial ends.
``python -m benchmarks.bench_trials 600`` runs fewer.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from cbs.trial.config import Choice
from cbs.trial.record import TrialResult
from sweeps.launching.launch import resolve, sweep
from sweeps.outlook.progress import Progress
from sweeps.running.cluster import Resources
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep

SEEDS, HUNDRED = 20, 100


def planned(trials: int) -> Sweep:
    """A grid of learning rates x 20 seeds; every trial takes three steps on a quadratic of ten coordinates."""
    asked = Sweep(
        name="trivial",
        workload=Choice(name="noisy_quadratic", options={"dimension": 10}),
        optimizers=(Choice(name="sgd"),),
        batch_sizes=(4,),
        seeds=tuple(range(SEEDS)),
        lrs=tuple(0.1 + 1e-4 * place for place in range(trials // SEEDS)),
        search="grid",
        max_steps=3,
        max_examples=12,
        probe=None,
    )
    return resolve(asked, 1e-3)


class Clock(Progress):
    """Notes when every trial ended, and how much memory this process held."""

    def __init__(self) -> None:
        super().__init__(None, None, 1)
        self.ends: list[float] = []
        self.memory: list[float] = []

    def finished(self, result: TrialResult, search: Search) -> None:
        self.ends.append(time.monotonic())
        self.memory.append(resident())


def resident() -> float:
    """Megabytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    asked, clock = planned(trials), Clock()
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        sweep(asked, Path(folder), resources=Resources(workers=2), progress=clock)
        whole = time.monotonic() - start
        files = sum(path.is_file() for path in Path(folder).rglob("*"))
    for last in range(2 * HUNDRED - 1, trials, HUNDRED):
        seconds = (clock.ends[last] - clock.ends[last - HUNDRED]) / HUNDRED
        print(f"trials to {last + 1:>5}: {seconds * 1000:5.0f} ms each, driver {clock.memory[last]:5.0f} MB")
    each = (clock.ends[-1] - clock.ends[0]) / (trials - 1)
    print(
        f"first trial after {clock.ends[0] - start:.1f} s, {each * 1000:.0f} ms per trial, end {whole:.0f} s, "
        f"{files / trials:.2f} files per trial"
    )


if __name__ == "__main__":
    main()
