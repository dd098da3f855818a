"""Megatron-LM: ``--step-batch-size-schedule`` (NVIDIA/Megatron-LM, pull request 4411, 2026).

Thresholds are tokens: it always passes its own ``--seq-length`` on, and makes whole samples of them by it, rounded down
(core/num_microbatches_calculator.py). Batch sizes are samples. It steps until ``--train-samples`` are consumed or more
(``update_train_iters`` of training/training.py), so only the samples of whole steps end where a plan does. There is no
factor of the learning rate. A batch size has to divide by micro-batch times data-parallel size.
"""

from __future__ import annotations

from analysis.extensions.schedule_plan.trainers import TRAINERS, ScheduleExport, TrainerFormat
from cbs.errors import ConfigError


@TRAINERS.register("megatron")
class Megatron(TrainerFormat):
    """Arguments of the command line."""

    def write(self, export: ScheduleExport) -> str:
        length = export.tokens_per_example
        if length is None:
            raise ConfigError(
                "Megatron-LM reads thresholds as tokens, by its own --seq-length: give --tokens-per-example"
            )
        table = " ".join(f"{start * length}:{size}" for start, size in export.table)
        return f'--step-batch-size-schedule "{table}" --seq-length {length} --train-samples {export.seen}\n'
