"""torchtitan: one run per stage, each from the checkpoint of the previous one (pytorch/torchtitan, August 2026).

``training.num_tokens_per_train_step`` is read once, when a run starts (trainer.py); earlier versions count sequences in
``training.global_batch_size``. A checkpoint contains the optimizer, the position in the data and the step, and a run
whose ``training.steps`` are done ends at once, so the same script continues where it was interrupted. Two defaults
would silently break it: the last checkpoint contains only the model (components/checkpointer/base.py), and the
learning-rate schedule ends with the steps of the current run (components/optimizer/lr_scheduler.py).
"""

from __future__ import annotations

import itertools
import shlex

from extensions.schedules.trainers import TRAINERS, ReadSchedule, ScheduleExport, TrainerFormat, of_steps

_LAST = "--training.steps"


@TRAINERS.register("torchtitan")
class Torchtitan(TrainerFormat):
    """A shell script, to be started in the folder of ``run_train.sh``; its arguments are passed to every run."""

    mark = "--training.num_tokens_per_train_step"
    in_tokens = "torchtitan counts batch sizes in tokens"

    def write(self, export: ScheduleExport) -> str:
        tokens = self.tokens(export.tokens_per_example)
        ends = list(itertools.accumulate(export.steps))
        kept = "--checkpoint.enable --checkpoint.no-last-save-model-only"
        runs = [
            f'./run_train.sh "$@" {kept} --lr_scheduler.total_steps {ends[-1]} {self.mark} '
            f"{size * tokens} {_LAST} {end}"
            for (_, size), end in zip(export.table, ends, strict=True)
        ]
        told = "# torchtitan changes no batch size within a run: one run per stage. The learning rate takes no factor"
        return "\n".join(["#!/usr/bin/env bash", told, "set -e", *runs]) + "\n"

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        each = self.tokens(tokens_per_example)
        lines = text.replace("\\\n", " ").replace("=", " ").splitlines()
        runs = [dict(itertools.pairwise(shlex.split(line))) for line in lines if self.mark in line]
        ends = [int(run[_LAST]) for run in runs]
        sizes = [self.examples(int(run[self.mark]), each) for run in runs]
        return of_steps([0, *ends[:-1]], sizes, ends[-1], each)
