"""OLMo-core: ``BatchSizeSchedulerCallback`` (allenai/OLMo-core, train/callbacks/batch_size_scheduler.py, 2026).

Batch sizes and starts are tokens. It changes the batch size by integer factors only, multiplies the learning rate by
the square root of the factor itself, and supports only Adam-like optimizers. Factors refer to ``global_batch_size`` of
the data loader, so that has to be the batch size of the first stage. An increase waits until the number of batches
done, counted in the current size, is divisible by its factor: stages are written to begin where it will begin them. It
steps until ``max_duration`` is reached or passed (train/trainer.py), so that is set to the end of the last whole step.
"""

from __future__ import annotations

import ast
import itertools
import math

from analysis.formatting import number
from cbs.errors import ConfigError
from extensions.schedules.trainers import TRAINERS, ReadSchedule, ScheduleExport, TrainerFormat

OPTIMIZERS = ("adam", "adamw")


@TRAINERS.register("olmo-core")
class OlmoCore(TrainerFormat):
    """The call that creates the callback, and the duration of the run."""

    mark = "BatchSizeSchedulerCallback"
    in_tokens = "OLMo-core counts batch sizes in tokens"
    carries_lr = True

    def write(self, export: ScheduleExport) -> str:
        tokens = self.tokens(export.tokens_per_example)
        if export.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"OLMo-core changes the batch size of {' and '.join(OPTIMIZERS)} alone, not of "
                f"{export.optimizer or 'an unnamed optimizer: give --optimizer'}"
            )
        sizes = [size for _, size in export.table]
        for stage, (before, after) in enumerate(itertools.pairwise(sizes), 1):
            if max(before, after) % min(before, after):
                raise ConfigError(
                    f"OLMo-core changes the batch size by whole factors, and {before} to {after} is none: use "
                    "--rule 'doubling(first_batch_size=N)'"
                )
            root, factor = math.sqrt(after / sizes[0]), export.lr_factors[stage]
            low, high = factor.interval
            if low is not None and high is not None and not low <= root <= high:
                raise ConfigError(
                    f"OLMo-core multiplies the learning rate by the root, {number(root)} at {after}, where "
                    f"{number(factor.value)} [{number(low)}, {number(high)}] is planned; to take it "
                    "all the same: --lr-exponent 0.5"
                )
        places, end = _waited(export)
        starts = ", ".join(f"Duration.tokens({start * tokens})" for start in places)
        return (
            f"{self.mark}(  # it multiplies the learning rate by the root of the batch size's factor by itself\n"
            f"    batch_sizes={[size * tokens for size in sizes]},\n    schedule=[{starts}],\n)\n"
            f"global_batch_size = {sizes[0] * tokens}  # of the data loader; another value changes the learning rate\n"
            f"max_duration = Duration.tokens({end * tokens})\n"
        )

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        each, end = self.tokens(tokens_per_example), None
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == self.mark:
                parts = {keyword.arg: keyword.value for keyword in node.keywords}
                sizes = ast.literal_eval(parts["batch_sizes"])
                starts = [_tokens(place) for place in parts["schedule"].elts]  # type: ignore[attr-defined]
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "max_duration":
                end = _tokens(node.value)
        table = [(start, self.examples(size, each)) for start, size in zip(starts, sizes, strict=True)]
        return ReadSchedule(table=tuple(table), end=end)


def _waited(export: ScheduleExport) -> tuple[list[int], int]:
    """Return the examples at which stages begin and the run ends, given that every increase waits for a suitable batch;
    ``done`` is the number of batches so far, counted in the current size."""
    seen, done, places = 0, 0, [0]
    ends = [*(start for start, _ in export.table[2:]), export.examples]
    for ((_, size), (start, after)), end in zip(itertools.pairwise(export.table), ends, strict=False):
        count = -(-(start - seen) // size)
        count += -(done + count) % max(after // size, 1)
        seen, done = seen + count * size, (done + count) * size // after
        places.append(seen)
        if seen >= end:
            raise ConfigError(
                f"OLMo-core can begin the stage of batch size {after} after {seen:,} examples, when the next one is "
                "due or the run has ended: plan longer stages"
            )
    last = export.table[-1][1]
    return places, seen + max((export.examples - seen) // last, 1) * last


def _tokens(node: ast.expr) -> int:
    """Return n of ``Duration.tokens(n)``."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "tokens" or len(node.args) != 1:
        raise ValueError("a duration that is not Duration.tokens(n)")
    value = ast.literal_eval(node.args[0])
    if not isinstance(value, int):
        raise ValueError(f"{value!r} tokens")
    return value
