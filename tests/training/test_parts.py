"""The parts of a trial: when each method is called, and what a checkpoint keeps of them."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from cbs.diagnostics import Diagnostic
from cbs.errors import ConfigError
from cbs.training.loop import TrainingLoop
from cbs.training.parts import Clipping, Diagnostics, Part, TrainingStep
from cbs.training.step_columns import StepColumns
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from tests.factories import quadratic

CONFIG = quadratic("sgd", {"dimension": 8}, target=1e-9, lr=0.05, batch_size=6, seed=1, max_steps=20, clip_norm=1e-3)


class Witness(Part):
    """Writes down what is called and what the weights and gradients are then."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.weight = next(model.parameters())
        self.calls: list[tuple[str, int, torch.Tensor, float]] = []

    def _note(self, what: str, step: TrainingStep) -> None:
        length = float("nan") if self.weight.grad is None else float(self.weight.grad.norm())
        self.calls.append((what, step.number, self.weight.detach().clone(), length))

    def begin(self, step: TrainingStep) -> None:
        assert step.batch is None
        assert not step.values
        self._note("begin", step)

    def before_step(self, step: TrainingStep) -> None:
        assert step.batch is not None
        assert "train_loss" in step.values
        self._note("before", step)

    def after_step(self, step: TrainingStep) -> None:
        self._note("after", step)


def loop(**changes: Any) -> TrainingLoop:
    config = dataclasses.replace(CONFIG, **changes)
    return TrainingLoop(config, build_workload(config.workload), torch.device("cpu"))


def test_each_method_is_called_once_per_step_around_the_gradient_and_the_move() -> None:
    trial = loop(probe=None)
    witness = Witness(trial.model)
    trial.parts.insert(0, witness)
    for step in (1, 2):
        trial.train_step(step)
    assert [call[:2] for call in witness.calls] == [(what, n) for n in (1, 2) for what in ("begin", "before", "after")]
    begin, before, after = (call[2] for call in witness.calls[:3])
    assert torch.equal(begin, before)
    assert not torch.equal(before, after)


def test_parts_before_clipping_see_the_gradient_as_it_is_and_those_behind_it_the_clipped_one() -> None:
    trial = loop(probe=None)
    (place,) = (index for index, part in enumerate(trial.parts) if isinstance(part, Clipping))
    first, last = Witness(trial.model), Witness(trial.model)
    trial.parts.insert(place + 1, last)
    trial.parts.insert(place, first)
    trial.train_step(1)
    assert first.calls[1][3] > 1e-3
    assert last.calls[1][3] == pytest.approx(1e-3, rel=1e-4)
    assert trial.columns.flush()[:, 1].tolist() == [1.0]


def test_the_noise_scale_is_that_of_the_gradient_before_it_is_clipped() -> None:
    clipped, plain = loop(), loop(clip_norm=None)
    for trial in (clipped, plain):
        trial.train_step(1)
        trial.columns.flush()
    one, other = clipped.columns.arrays(), plain.columns.arrays()
    for name in ("big_grad_sq_norm", "noise_trace"):
        np.testing.assert_array_equal(one[name], other[name])


def flat(state: Any) -> list[Any]:
    return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(state)]


def test_every_part_goes_back_to_the_state_it_gave() -> None:
    changes = {
        "probe": Choice(name="accumulation", options={"every": 1}),
        "averaging": Choice(name="ema", options={"decay": 0.5}),
        "batch_schedule": Choice(name="stages", options={"table": "0:6 12:8"}),
        "optimizer": Choice(name="sgd", options={"momentum": 0.5}),
    }
    trial = loop(**changes)
    trial.evaluate(step=0, lr=0.0, losses=np.empty(0))
    for step in (1, 2, 3):
        trial.train_step(step)
    trial.evaluate(step=3, lr=0.0, losses=trial.columns.flush()[:, 0])
    state, other = trial.state(), loop(**changes)
    fresh = other.state()["parts"]
    other.load_state(copy.deepcopy(state))
    again = other.state()["parts"]
    for name, before in state["parts"].items():
        assert flat(again[name]) == flat(before)
        assert not before or flat(fresh[name]) != flat(before), name


def test_a_checkpoint_without_the_state_of_a_part_is_refused() -> None:
    trial = loop()
    trial.evaluate(step=0, lr=0.0, losses=np.empty(0))
    trial.columns.flush()
    state = trial.state()
    loop().load_state(state)
    del state["parts"][StepColumns.__name__]
    with pytest.raises(LookupError):
        loop().load_state(state)


def test_a_diagnostic_does_not_take_the_column_of_another_part() -> None:
    class Loss(Diagnostic):
        compiled = True

        def __enter__(self) -> object:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def columns(self) -> dict[str, torch.Tensor]:
            return {"train_loss": torch.tensor(0.0)}

    trial = loop(probe=None)
    trial.parts.insert(0, Diagnostics([Loss()], 1, trial.model, trial.optimizer))
    with pytest.raises(ConfigError, match="Loss has columns that already exist: train_loss"):
        trial.train_step(1)
