"""Time to find the best settings on the noisy quadratic, as ratios to the authors' procedure.

The procedure is that of the notebook of Zhang et al. (2019), written anew: for every setting and batch size a bisection
of the steps between 0 and 10^9 (SGD) or 10^7 (momentum), each probe of which computes the second moments in all 100
bins from their closed form; for momentum that decomposes a 3 x 3 matrix for each bin at every probe. It is timed on
some of the settings and counted for all. Ours shares roots over batch sizes, gallops, and drops what cannot win.
Times are those of the processor, on one thread, taken in turns after all have run once. Run it as
``OMP_NUM_THREADS=1 python -m benchmarks.bench_noisy_quadratic``.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.interleaved import measure
from cbs.theory.noisy_quadratic import NoisyQuadratic, best_settings

TARGET, BATCH_SIZE, ROUNDS = 0.01, 256, 15
MODEL = NoisyQuadratic.binned(10_000)
SGD_LRS, LRS, MOMENTA = np.logspace(-5, 0.5, 100), np.logspace(-8, 1, 100), 1 - np.logspace(-5, 0, 20)
TEN = [4.0 * 4**power for power in range(10)]


def sgd_loss(lr: float, steps: int) -> float:
    kept = (1 - lr * MODEL.curvature) ** 2
    rest = lr**2 * MODEL.noise / BATCH_SIZE / (1 - kept + 1e-8)
    return float(0.5 * (MODEL.count * MODEL.curvature * (rest + kept**steps * (MODEL.start - rest))).sum())


def momentum_loss(lr: float, momentum: float, steps: int) -> float:
    x = lr * MODEL.curvature
    matrix = np.empty((len(x), 3, 3))
    matrix[:, :, 1] = momentum**2
    matrix[:, :, 0] = np.stack([(1 - x) ** 2, x**2, -x * (1 - x)], 1)
    matrix[:, :, 2] = momentum * np.stack([2 * (1 - x), -2 * x, 1 - 2 * x], 1)
    values, vectors = np.linalg.eig(matrix)
    inverse = np.linalg.inv(vectors)
    start = inverse @ (MODEL.start[:, None] * np.array([1.0, 0.0, 0.0]))[..., None]
    rest = inverse @ np.repeat((lr**2 * MODEL.noise / BATCH_SIZE)[:, None], 3, 1)[..., None] / (1 - values[..., None])
    moments = vectors @ (values[..., None] ** steps * (start - rest) + rest)
    return float((0.5 * MODEL.count * MODEL.curvature * moments[:, 0, 0].real).sum())


def bisected(loss: object, high: int) -> int:
    low = 0
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle) < TARGET else (middle, high)  # type: ignore[operator]
    return low


def procedure_sgd() -> None:
    for lr in SGD_LRS:
        bisected(lambda steps, lr=lr: sgd_loss(lr, steps), 10**9)


def procedure_momentum() -> None:
    for lr in LRS[::25]:
        for momentum in MOMENTA[::5]:
            bisected(lambda steps, lr=lr, m=momentum: momentum_loss(lr, m, steps), 10**7)


def main() -> None:
    with np.errstate(all="ignore"):
        times = measure(
            {
                "momentum: procedure": procedure_momentum,
                "momentum": lambda: best_settings(MODEL, "heavy_ball", TARGET, [BATCH_SIZE], LRS, MOMENTA),
                "momentum, 10 sizes": lambda: best_settings(MODEL, "heavy_ball", TARGET, TEN, LRS, MOMENTA),
                "sgd: procedure": procedure_sgd,
                "sgd": lambda: best_settings(MODEL, "sgd", TARGET, [BATCH_SIZE], SGD_LRS),
            },
            rounds=ROUNDS,
            clock=time.process_time,
        )
    counted = len(LRS) * len(MOMENTA) / (len(LRS[::25]) * len(MOMENTA[::5]))
    times["momentum: procedure"] = [counted * value for value in times["momentum: procedure"]]
    for name, values in times.items():
        print(f"{name:22} {np.median(values):9.4f} s  ({min(values):.4f} to {max(values):.4f})")
    for name, sizes in {"sgd": 1, "momentum": 1, "momentum, 10 sizes": len(TEN)}.items():
        ratios = sizes * np.array(times[f"{name.split(',')[0]}: procedure"]) / times[name]
        print(f"{name:22} {np.median(ratios):9.0f} x  ({min(ratios):.0f} to {max(ratios):.0f})")


if __name__ == "__main__":
    main()
