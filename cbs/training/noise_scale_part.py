"""The noise scale as a part of the training loop: its probe reads the gradients before they are clipped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cbs.noise_scale.probe import AUTO, FALLBACK, REPLICAS
from cbs.registry.choices import Choice
from cbs.training.parts import Part, TrainingStep
from cbs.training.probe_columns import ProbeColumns, build_probe
from cbs.training.ranks import Ranks
from cbs.trial.config import TrialConfig

UNMEASURED = "the noise scale is not measured: "


class NoiseScalePart(Part):
    """Measurement of the moments of the gradient, at the interval that the configuration's probe sets for the batch
    size.

    Args:
        config: configuration of the trial; it has a probe.
        model: the model as it is trained.
        optimizer: optimizer of the trial.
        ranks: the workers of the trial.
        examples: returns the number of examples in the current forward pass, because a workload may call its model in
            any way.

    Attributes:
        measured: the probe and its columns.
    """

    def __init__(
        self,
        config: TrialConfig,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        examples: Callable[[], int],
    ) -> None:
        assert config.probe is not None
        choice = chosen(config.probe, compiled=config.compile, ranks=ranks)
        probe = build_probe(choice, model, optimizer, config.batch_size, count=lambda args, kwargs: examples())
        self.measured = ProbeColumns(probe, choice)
        self.columns = self.measured.names
        self._batch_size, self._steps, self._before = config.batch_size, 0, 0

    @property
    def note(self) -> str:
        """Why the noise scale is not measured, in one line; empty if it is."""
        why = self.measured.probe.stopped
        return f"{UNMEASURED}{why}" if why else ""

    def begin(self, step: TrainingStep) -> None:
        self._plan(step.stage.batch_size)
        self._steps = self._before + step.number

    def before_step(self, step: TrainingStep) -> None:
        step.noise_measured = self.measured.watching
        step.values.update(zip(self.columns, self.measured.step(), strict=True))

    def state(self) -> dict[str, Any]:
        probe = self.measured.probe
        return {
            "source": probe.source,
            "stopped": probe.stopped,
            "batch_size": self._batch_size,
            "steps": self._steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._batch_size, self._steps = state["batch_size"], state["steps"]
        self.measured.plan(self._batch_size)
        self.measured.start_at(self._steps, state["source"], state["stopped"])

    def go_on(self, state: dict[str, Any]) -> None:
        """Continue from the first step on as the trial would have that returned ``state`` from :meth:`state`."""
        self._before = self._steps = state["steps"]
        self.measured.start_at(self._steps, state["source"], state["stopped"])

    def _plan(self, batch_size: int) -> None:
        if batch_size != self._batch_size:
            self._batch_size = batch_size
            self.measured.plan(batch_size)


def chosen(choice: Choice, *, compiled: bool, ranks: Ranks) -> Choice:
    """Return the probe of a trial; ``auto`` is replaced where the model is compiled or there are several ranks."""
    if choice.name == AUTO and (compiled or ranks.world > 1):
        return dataclasses.replace(choice, name=REPLICAS if ranks.world > 1 else FALLBACK)
    return choice
