"""Time to find the best settings on the noisy quadratic, as ratios to the authors' procedure.

The procedure is that of the notebook of Zhang et al. (2019), written anew: for every setting and batch size a bisection
of the steps between 0 and 10^9 (SGD) or 10^7 (momentum), each probe of which computes the second moments in all 100
bins from their closed form; for momentum that decomposes a 3 x 3 matrix for each bin at every probe. It is timed on
some of the settings and counted for all. Ours shares roots over batch sizes, gallops, and drops what cannot win.
Run it as ``taskset -c 0 python benchmarks/bench_noisy_quadratic.py``.
"""

from __future__ import annotations

import time

import numpy as np

from cbs.theory.noisy_quadratic import NoisyQuadratic, best_settings

TARGET, BATCH_SIZE, ROUNDS = 0.01, 256, 3
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


def seconds(work: object, share: float = 1.0) -> float:
    start = time.perf_counter()
    work()  # type: ignore[operator]
    return (time.perf_counter() - start) / share


def procedure_sgd() -> None:
    for lr in SGD_LRS:
        bisected(lambda steps, lr=lr: sgd_loss(lr, steps), 10**9)


def procedure_momentum() -> None:
    for lr in LRS[::25]:
        for momentum in MOMENTA[::5]:
            bisected(lambda steps, lr=lr, m=momentum: momentum_loss(lr, m, steps), 10**7)


def main() -> None:
    times: dict[str, list[float]] = {}
    with np.errstate(all="ignore"):
        for _ in range(ROUNDS):
            for name, took in {
                "sgd: procedure": seconds(procedure_sgd),
                "sgd": seconds(lambda: best_settings(MODEL, "sgd", TARGET, [BATCH_SIZE], SGD_LRS)),
                "momentum: procedure": seconds(procedure_momentum, len(LRS[::25]) * len(MOMENTA[::5]) / 2000),
                "momentum": seconds(lambda: best_settings(MODEL, "heavy_ball", TARGET, [BATCH_SIZE], LRS, MOMENTA)),
                "momentum, 10 sizes": seconds(lambda: best_settings(MODEL, "heavy_ball", TARGET, TEN, LRS, MOMENTA)),
            }.items():
                times.setdefault(name, []).append(took)
    for name, values in times.items():
        print(f"{name:22} {np.median(values):9.4f} s  ({min(values):.4f} to {max(values):.4f})")
    sgd = np.array(times["sgd: procedure"]) / times["sgd"]
    one = np.array(times["momentum: procedure"]) / times["momentum"]
    ten = 10 * np.array(times["momentum: procedure"]) / times["momentum, 10 sizes"]
    for name, ratios in (("sgd", sgd), ("momentum", one), ("momentum, 10 sizes", ten)):
        print(f"{name:22} {np.median(ratios):9.0f} x  ({min(ratios):.0f} to {max(ratios):.0f})")


if __name__ == "__main__":
    main()
