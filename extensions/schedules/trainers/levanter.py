"""Levanter: a list in place of ``trainer.train_batch_size`` (levanter/schedule.py, ``ScheduleStep``).

Starts are optimizer steps, sizes are examples. There is no factor of the learning rate, whose schedule is also in
steps. With a list it accumulates gradients only if ``trainer.per_device_parallelism`` is given, which, times the number
of devices, has to divide every size.
"""

from __future__ import annotations

import itertools

import yaml

from extensions.schedules.trainers import TRAINERS, ReadSchedule, ScheduleExport, TrainerFormat, of_steps


@TRAINERS.register("levanter")
class Levanter(TrainerFormat):
    """The relevant part of the configuration, in YAML."""

    mark = "train_batch_size"

    def write(self, export: ScheduleExport) -> str:
        starts = [0, *itertools.accumulate(export.steps)]
        entries = [{"start": start, "value": size} for start, (_, size) in zip(starts, export.table, strict=False)]
        content = {"trainer": {"train_batch_size": entries, "num_train_steps": starts[-1]}}
        return yaml.safe_dump(content, sort_keys=False)

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        trainer = yaml.safe_load(text)["trainer"]
        entries, steps = trainer[self.mark], trainer.get("num_train_steps")
        if isinstance(entries, int):
            entries = [{"start": 0, "value": entries}]
        if entries[0]["start"] != 0:
            raise ValueError(f"it begins at step {entries[0]['start']}, not at 0")
        starts, sizes = ([int(entry[key]) for entry in entries] for key in ("start", "value"))
        return of_steps(starts, sizes, None if steps is None else int(steps), tokens_per_example)
