"""How trainers take a batch-size schedule: one file each, found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from cbs.registry import Registry


@dataclass(frozen=True, kw_only=True)
class ScheduleExport:
    """A schedule to be written.

    Attributes:
        table: examples at which each stage begins, and its batch size in examples.
        steps: in each.
        tokens_per_example: ``None`` where that means nothing.
    """

    table: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    tokens_per_example: int | None = None

    @property
    def seen(self) -> int:
        """Examples of all steps: where a trainer ends that goes on until so many are seen, or more."""
        return sum(count * size for count, (_, size) in zip(self.steps, self.table, strict=True))


class TrainerFormat(ABC):
    """One trainer's way to write a schedule. None carries factors of the learning rate."""

    @abstractmethod
    def write(self, export: ScheduleExport) -> str:
        """The text that the trainer takes, for ``cbs schedule plan --export``.

        Raises:
            ConfigError: if the trainer cannot do it.
        """


TRAINERS: Registry[type[TrainerFormat]] = Registry(
    "trainer", "analysis.extensions.schedule_plan.trainers", derived_from=TrainerFormat
)
