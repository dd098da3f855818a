"""What it costs to plan: seconds of this process for 2,000 trials in one study, and over 20, without training.

Every trial is asked for, ends, and is taken in, as Ray Tune would do it. As seconds, since what counts is that nobody
waits for them.
"""

from __future__ import annotations

import time

from benchmarks.search_worlds import World, sweep
from sweeps.search.forecast import play
from sweeps.search.search import Search

WORLD = World(1.0, 0.5, 0.05, 0)


def main() -> None:
    base = sweep(WORLD)
    sizes = tuple(2**power for power in range(20))
    lrs = tuple(float(f"{1e-5 * 1.005**place:.6g}") for place in range(2000))
    for name, planned in {
        "one study, 2,000 seeds": base.replace(batch_sizes=(64,), seeds=tuple(range(1990))),
        "one study, 2,000 seeds, grid": base.replace(batch_sizes=(64,), seeds=tuple(range(2000)), lrs=(4e-3,)),
        "one study, 2,000 learning rates": base.replace(batch_sizes=(64,), seeds=(0,), lrs=lrs),
        "20 studies, 2,000 trials": base.replace(batch_sizes=sizes, seeds=tuple(range(93))),
        "20 studies, 2,000 trials, grid": base.replace(batch_sizes=sizes, seeds=tuple(range(14)), search="grid"),
    }.items():
        start = time.process_time()
        search = Search(planned)
        played = play(search, WORLD.end, workers=8)
        middle = time.process_time()
        again = Search(planned, played.results)
        assert again.done
        print(
            f"{name:<34} {len(played.results):>5} trials {middle - start:6.2f} s, again from storage "
            f"{time.process_time() - middle:5.2f} s"
        )


if __name__ == "__main__":
    main()
