"""Megatron-LM: ``--step-batch-size-schedule`` (NVIDIA/Megatron-LM, pull request 4411, 2026).

Thresholds are tokens: it always uses its own ``--seq-length`` to convert them to whole samples, rounded down
(core/num_microbatches_calculator.py). Batch sizes are samples. It steps until at least ``--train-samples`` are consumed
(``update_train_iters`` of training/training.py), so only the samples of whole steps end at the same point as a plan.
There is no factor of the learning rate. A batch size has to be divisible by micro-batch size times data-parallel size.
"""

from __future__ import annotations

import itertools
import shlex

from cbs.errors import ConfigError
from cbs.registry.values import parse_table
from extensions.schedules.trainers import TRAINERS, ReadSchedule, ScheduleExport, TrainerFormat


@TRAINERS.register("megatron")
class Megatron(TrainerFormat):
    """Command-line arguments."""

    mark = "--step-batch-size-schedule"
    in_tokens = "Megatron-LM reads thresholds as tokens, by its own --seq-length"

    def write(self, export: ScheduleExport) -> str:
        length = self.tokens(export.tokens_per_example)
        table = " ".join(f"{start * length}:{size}" for start, size in export.table)
        return f'{self.mark} "{table}" --seq-length {length} --train-samples {export.seen}\n'

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        words = shlex.split(text.replace("\\\n", " ").replace("=", " "))
        given = dict(itertools.pairwise(words))
        table, last = parse_table(given[self.mark]), given.get("--train-samples")
        samples = None if last is None else int(last)
        length = self.tokens(max(int(given.get("--seq-length", tokens_per_example or 0)), 0) or None)
        if tokens_per_example is not None and length != tokens_per_example:
            raise ConfigError(f"--seq-length {length} and --tokens-per-example {tokens_per_example} differ")
        each = tokens_per_example or 1
        places = [(start // length, size) for start, size in table]
        end = None if samples is None else _consumed(places, samples) * each
        return ReadSchedule(table=tuple((start * each, size) for start, size in places), end=end)


def _consumed(places: list[tuple[int, int]], samples: int) -> int:
    """Return the number of samples in the whole steps until Megatron-LM has consumed at least ``samples``."""
    seen = 0
    for (_, size), (later, _) in zip(places, [*places[1:], (samples, 0)], strict=True):
        seen += max(0, -(-(min(later, samples) - seen) // size)) * size
    return seen
