"""Hugging Face Trainer, which has no batch-size schedule of its own (huggingface/transformers, issue 31222, open).

A plan is written, in examples, for :class:`cbs.integrations.huggingface_stages.StagesCallback`, which makes the Trainer
follow it. The factors of the learning rate are included if all of them are known.
"""

from __future__ import annotations

from analysis.extensions.schedule_plan.trainers import TRAINERS, ReadSchedule, ScheduleExport, TrainerFormat
from cbs.schedules.batch_size import Stage
from cbs.schedules.plan import BatchPlan, plan_from_text, plan_to_text


@TRAINERS.register("transformers")
class Transformers(TrainerFormat):
    """The JSON file that the callback reads."""

    carries_lr = True

    def write(self, export: ScheduleExport) -> str:
        known = [factor.value for factor in export.lr_factors if factor.value is not None]
        factors = known if len(known) == len(export.table) else [1.0] * len(export.table)
        return plan_to_text(
            BatchPlan(
                starts=tuple(start for start, _ in export.table),
                stages=tuple(Stage(size, factor) for (_, size), factor in zip(export.table, factors, strict=True)),
                examples=export.examples,
            )
        )

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule | None:
        if '"stages"' not in text:
            return None
        plan, each = plan_from_text(text), tokens_per_example or 1
        sizes = [stage.batch_size for stage in plan.stages]
        starts = [start * each for start in plan.starts]
        return ReadSchedule(table=tuple(zip(starts, sizes, strict=True)), end=plan.examples * each)
