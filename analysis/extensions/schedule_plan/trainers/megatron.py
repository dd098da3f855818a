"""Megatron-LM: ``--step-batch-size-schedule`` (NVIDIA/Megatron-LM, pull request 4411, 2026).

Thresholds are tokens: it always uses its own ``--seq-length`` to convert them to whole samples, rounded down
(core/num_microbatches_calculator.py). Batch sizes are samples. It steps until at least ``--train-samples`` are consumed
(``update_train_iters`` of training/training.py), so only the samples of whole steps end at the same point as a plan.
There is no factor of the learning rate. A batch size has to be divisible by micro-batch size times data-parallel size.
"""

from __future__ import annotations

import itertools
import shlex

from analysis.extensions.schedule_plan.trainers import TRAINERS, ReadSchedule, ScheduleExport, TrainerFormat
from cbs.errors import ConfigError
from cbs.schedules.batch_size.text import parse_table

_FLAG = "--step-batch-size-schedule"
_NO_LENGTH = "Megatron-LM reads thresholds as tokens, by its own --seq-length: give --tokens-per-example"


@TRAINERS.register("megatron")
class Megatron(TrainerFormat):
    """Command-line arguments."""

    def write(self, export: ScheduleExport) -> str:
        length = export.tokens_per_example
        if length is None:
            raise ConfigError(_NO_LENGTH)
        table = " ".join(f"{start * length}:{size}" for start, size in export.table)
        return f'{_FLAG} "{table}" --seq-length {length} --train-samples {export.seen}\n'

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule | None:
        if _FLAG not in text:
            return None
        try:
            words = shlex.split(text.replace("\\\n", " ").replace("=", " "))
            given = dict(itertools.pairwise(words))
            table, last = parse_table(given[_FLAG]), given.get("--train-samples")
            length = int(given.get("--seq-length", tokens_per_example or 0))
            samples = None if last is None else int(last)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{_FLAG} cannot be read: {error}") from None
        if length < 1:
            raise ConfigError(_NO_LENGTH)
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
