"""Megatron-LM: ``--step-batch-size-schedule`` (NVIDIA/Megatron-LM, pull request 4411, 2026).

Thresholds are tokens, of which it makes whole samples by ``--seq-length``, rounded down; batch sizes are samples. There
is no factor of the learning rate. A batch size has to divide by micro-batch times data-parallel size.
"""

from __future__ import annotations

import itertools
import shlex

from analysis.read.trainers import TRAINERS, Read, Told, Trainer
from cbs.batch_schedules.text import parse_table
from cbs.errors import ConfigError

_FLAG = "--step-batch-size-schedule"


@TRAINERS.register("megatron")
class Megatron(Trainer):
    """Arguments of the command line."""

    def write(self, told: Told) -> str:
        table = " ".join(f"{start * (told.tokens_per_example or 1)}:{size}" for start, size in told.table)
        length = [] if told.tokens_per_example is None else [f"--seq-length {told.tokens_per_example}"]
        return " ".join([f'{_FLAG} "{table}"', *length, f"--train-samples {told.examples}"]) + "\n"

    def read(self, text: str, tokens_per_example: int | None) -> Read | None:
        if _FLAG not in text:
            return None
        try:
            words = shlex.split(text.replace("\\\n", " ").replace("=", " "))
            given = dict(itertools.pairwise(words))
            table, end = parse_table(given[_FLAG]), given.get("--train-samples")
            length = int(given.get("--seq-length", tokens_per_example or 1))
            samples = None if end is None else int(end)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{_FLAG} cannot be read: {error}") from None
        if tokens_per_example is not None and length != tokens_per_example:
            raise ConfigError(f"--seq-length {length} and --tokens-per-example {tokens_per_example} differ")
        each = tokens_per_example or 1
        whole = [(start // length * each, size) for start, size in table]
        return Read(table=tuple(whole), end=None if samples is None else samples * each)
