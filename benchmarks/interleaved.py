"""Ratios of medians, measured side by side in one process, so that a drifting machine slows both sides alike."""

import statistics
import time
from collections.abc import Callable


def measure(
    candidates: dict[str, Callable[[], object]],
    *,
    rounds: int = 15,
    seconds: float = 0.1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of every candidate, one value per round; candidates take turns within a round.

    ``time.process_time`` as the clock counts the processor time of this process alone, for work on one thread.
    """
    calls = {}
    for name, call in candidates.items():
        call()
        started = clock()
        call()
        calls[name] = max(1, int(seconds / (clock() - started)))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            started = clock()
            for _ in range(calls[name]):
                call()
            times[name].append((clock() - started) / calls[name])
    return times


def table(times: dict[str, list[float]], reference: str) -> str:
    """One line per candidate: median time, and the ratio to the reference round by round (min, median, max)."""
    lines = [f"{'':<26}{'median':>10}   ratio to {reference} (min / median / max)"]
    for name, values in times.items():
        ratios = sorted(value / base for value, base in zip(values, times[reference], strict=True))
        median = statistics.median(ratios)
        lines.append(
            f"{name:<26}{1e3 * statistics.median(values):>7.3f} ms   {ratios[0]:.2f} / {median:.2f} / {ratios[-1]:.2f}"
        )
    return "\n".join(lines)
