"""How soon ``BatchSizeController`` with rule ``doubling`` grows, on streams of moments whose noise scale is known.

    python -m benchmarks.controller_power

prints the tables of docs/schedules.md (three minutes of one core): steps until the batch grows, by noise scale over
batch size and measured steps of a look, and how many of 1,000 streams below the batch grow within 2,000 steps. Moments
are independent and normal: |G|^2 varies from step to step by ``variation`` times its mean, tr(Sigma) by half of its.
"""

from __future__ import annotations

import math

import numpy as np

from cbs.schedules.accumulation import Accumulation, Look
from cbs.schedules.batch_size import Stage
from cbs.training.batch_sizes import observed

BATCH = 64
WINDOWS = (50, 100, 200, 400)
ABOVE = (2.0, 2.25, 2.5, 3.0, 4.0)
BELOW = 0.99
VARIATIONS = (2.0, 3.0, 5.0)


def grows_after(ratio: float, seed: int, *, steps: int, measurements: int = 100, variation: float = 2.0) -> float:
    """Steps until the rule makes the batch grow; infinity where it does not within ``steps``.

    Args:
        ratio: noise scale over batch size.
        seed: of the stream.
        steps: all of which are measured.
        measurements: of a look.
        variation: standard deviation of |G|^2 over its mean.
    """
    rule = Accumulation(
        rule=f"doubling(measurements={measurements})", micro_batch_size=8, micro_batches=BATCH // 8, world_size=1,
        cap=1024,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    for step in range(measurements, steps + 1, measurements):
        signal = rng.normal(1.0, variation, measurements)
        noise = ratio * BATCH * rng.normal(1.0, 0.5, measurements)
        seen = observed(rule.schedule, Stage(BATCH), signal, noise)
        look = Look(
            step=step, examples=BATCH * step, batch_size=BATCH, lr_factor=1.0, measured=measurements,
            taken=float(BATCH), low=seen.low, value=seen.value, high=seen.high,
        )  # fmt: skip
        if rule.decide(look).batch_size > BATCH:
            return step
    return math.inf


def after(streams: list[float]) -> str:
    """Median and ninth decile of the steps, and the share that grew within 2,000."""
    middle, most = (float(np.quantile(streams, level, method="higher")) for level in (0.5, 0.9))
    said = [f"{steps:,.0f}" if math.isfinite(steps) else "> 8,000" for steps in (middle, most)]
    return f"{said[0]}, {said[1]} ({np.mean(np.array(streams) <= 2000):.0%})"


def main() -> None:
    print(f"| noise scale over batch size | {' | '.join(f'{window} steps a look' for window in WINDOWS)} |")
    print(f"|{'---|' * (len(WINDOWS) + 1)}")
    for ratio in ABOVE:
        cells = [
            after([grows_after(ratio, seed, steps=8000, measurements=window) for seed in range(400)])
            for window in WINDOWS
        ]
        print(f"| {ratio:g} | {' | '.join(cells)} |", flush=True)
    for variation in VARIATIONS:
        grown = [
            sum(
                grows_after(BELOW, seed, steps=2000, measurements=window, variation=variation) <= 2000
                for seed in range(1000)
            )
            for window in WINDOWS
        ]
        print(f"| {BELOW:g}, |G|^2 varies by {variation:g} | {' | '.join(map(str, grown))} of 1,000 |", flush=True)


if __name__ == "__main__":
    main()
