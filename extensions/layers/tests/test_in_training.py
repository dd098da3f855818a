"""Diagnostics in a trial: what they record of attention and of an optimizer's steps."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.optimizers.merit import MERIT
from cbs.training.noise_scale import L2_COLUMNS
from cbs.training.run import run_trial
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import Measurement
from cbs.trial.target import Target
from cbs.workloads import build_workload
from extensions.layers.diagnostics.max_attention_logit import MaxAttentionLogit
from extensions.layers.diagnostics.optimizer_step import OptimizerStep

CONFIG = TrialConfig(
    workload=Choice(name="text", options={"validation_sequences": 8, "context": 16}),
    optimizer=Choice(name="adamw"),
    lr=2e-3,
    batch_size=4,
    seed=3,
    target=Target(metric="validation_loss", value=1.0),
    max_steps=12,
    probe=None,
    diagnostics=("max_attention_logit",),
)
COLUMNS = ("max_attention_logit_layer_1", "max_attention_logit_layer_2")


def config_with(**changes: Any) -> TrialConfig:
    return dataclasses.replace(CONFIG, **changes)


class Recorder:
    """A workload that keeps the model and what the largest logits of every training pass would be."""

    def __init__(self) -> None:
        self.inner = build_workload(CONFIG.workload)
        self.seen: list[list[float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def build_model(self) -> nn.Module:
        self.model = self.inner.build_model()
        return self.model

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        with torch.no_grad(), MaxAttentionLogit() as logits:
            self.inner.example_losses(model, batch)
        self.seen.append(logits.read().tolist())
        return self.inner.example_losses(model, batch)


class OneCall(Recorder):
    """Likewise, without the extra pass."""

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        return self.inner.example_losses(model, batch)


def weights(config: TrialConfig) -> tuple[list[float], dict[str, Tensor]]:
    """Evaluations and final weights of a trial."""
    workload = OneCall()
    result = run_trial(config, workload=workload)
    return [row.value for row in result.evaluations], workload.model.state_dict()


@pytest.mark.parametrize("probe", [None, Choice(name="split", options={"every": 1})])
def test_the_weights_are_bitwise_those_without_it(probe: Choice | None) -> None:
    values, with_it = weights(config_with(probe=probe))
    plain, without = weights(config_with(probe=probe, diagnostics=()))
    assert values == plain
    for name, value in without.items():
        assert torch.equal(with_it[name], value), name


def test_one_column_per_layer_after_those_of_the_probe() -> None:
    steps = run_trial(config_with(probe=Choice(name="auto", options={"geometry": "l2"}))).steps
    assert tuple(steps) == ("step", "examples", "batch_size", "train_loss", *L2_COLUMNS, *COLUMNS)
    for name in COLUMNS:
        assert np.isfinite(steps[name]).all()
        assert len(np.unique(steps[name])) == 12
    assert not set(COLUMNS) & set(run_trial(config_with(diagnostics=(), max_steps=2)).steps)


def test_every_step_has_the_largest_of_all_its_micro_batches() -> None:
    recorder = Recorder()
    watched = run_trial(config_with(micro_batch_size=2, diagnostics=()), workload=recorder)
    expected = np.array(recorder.seen).reshape(12, 2, 2).max(axis=1)  # steps, micro-batches, layers
    steps = run_trial(config_with(micro_batch_size=2)).steps
    np.testing.assert_array_equal(steps["train_loss"], watched.steps["train_loss"])
    np.testing.assert_array_equal(np.stack([steps[name] for name in COLUMNS], axis=1), expected)


class Killed(Exception):
    """Stands for the death of the process."""


def killed(rows: Sequence[Measurement]) -> None:
    if rows[-1].step >= 7:
        raise Killed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"diagnostics": ("max_logit",)}, "did you mean max_attention_logit"),
        ({"compile": True}, "cannot see into a compiled model"),
        (
            {
                "workload": Choice(name="noisy_quadratic", options={"dimension": 10}),
                "target": Target(metric="validation_loss", value=1e-9),
            },
            "never calls torch.nn.functional.scaled_dot_product_attention",
        ),
    ],
)
def test_misuse_is_one_clear_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_trial(config_with(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


OF_MERIT = config_with(optimizer=Choice(name="merit"), lr=4e-3, max_steps=7, diagnostics=())
LR = 0.1


def model_with_gradients() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    model(torch.randn(8, 6)).square().mean().backward()
    return model


def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The columns of one step."""
    diagnostic = OptimizerStep()
    names = diagnostic.before_step(model, optimizer)
    optimizer.step()
    columns = diagnostic.columns()
    assert sorted(names) == sorted(columns)
    return {name: float(value) for name, value in columns.items()}


def norm(tensor: torch.Tensor) -> float:
    return float(tensor.double().norm())


def test_norms_are_those_of_weight_gradient_and_update() -> None:
    model = model_with_gradients()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    columns = watched(model, torch.optim.SGD(model.parameters(), lr=LR))
    assert {name.split(".", 1)[1] for name in columns} == {"0.weight", "1.weight"}  # and no biases
    for name in ("0.weight", "1.weight"):
        gradient = dict(model.named_parameters())[name].grad
        assert columns[f"weight_norm.{name}"] == pytest.approx(norm(before[name]), rel=1e-6)
        assert columns[f"gradient_norm.{name}"] == pytest.approx(norm(gradient), rel=1e-6)
        assert columns[f"update_norm.{name}"] == pytest.approx(LR * norm(gradient), rel=1e-4)
        assert columns[f"clipped_share.{name}"] == pytest.approx(float((gradient.abs() > 1).double().mean()))
    assert not [name for name in columns if "trust" in name]


def test_ratios_and_clipped_share_of_merit_are_those_of_its_algorithm() -> None:
    model = model_with_gradients()
    with torch.no_grad():
        model[0].weight[0, 0].fill_(8.0)  # type: ignore[index, operator]
    weight, gradient = model[0].weight.detach().clone(), model[0].weight.grad  # type: ignore[union-attr, index, operator]
    columns = watched(model, MERIT(model.parameters(), lr=LR, eps=3e-3))
    m, v = 0.1 * gradient, 0.001 * gradient**2
    direction = m / (v.sqrt() + 3e-3)  # so that entries differ
    whole = weight.abs().max() / direction.abs().max()
    rows = weight.abs().amax(1, True) / direction.abs().amax(1, True)
    lines = weight.abs().amax(0, True) / direction.abs().amax(0, True)
    scaled = torch.maximum(torch.maximum(rows, lines), whole) * direction
    share = float((scaled.abs() > 1).double().mean())
    assert 0.1 < share < 1.0
    assert columns["clipped_share.0.weight"] == pytest.approx(share)
    assert columns["trust_ratio.0.weight"] == pytest.approx(float(whole), rel=1e-4)
    largest = max(float(whole), float(rows.max()), float(lines.max()))
    assert columns["largest_trust_ratio.0.weight"] == pytest.approx(largest, rel=1e-4)
    assert columns["clipped_share.1.weight"] == 0.0


def steps_of(**changes: Any) -> Any:
    return run_trial(dataclasses.replace(OF_MERIT, **changes))


def test_a_trial_records_one_step_in_so_many_and_trains_the_same() -> None:
    plain = steps_of()
    result = steps_of(diagnostics=("optimizer_step",), diagnostics_every=3)
    assert [row.value for row in result.evaluations] == [row.value for row in plain.evaluations]
    names = [name for name in result.steps if name.startswith("update_norm.")]
    assert len(names) == 10
    for name in names:
        there = np.isfinite(result.steps[name])
        assert there.tolist() == [True, False, False, True, False, False, True]
        assert (result.steps[name][there] > 0).all()
    every = steps_of(diagnostics=("optimizer_step",))
    assert (every.steps[names[0]][::3] == result.steps[names[0]][::3]).all()
    assert set(every.steps) - set(plain.steps) == {name for name in every.steps if "." in name}
