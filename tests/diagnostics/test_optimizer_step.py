"""What the optimizer's step does to every matrix, against the same by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cbs.diagnostics.optimizer_step import OptimizerStep
from cbs.errors import ConfigError
from cbs.optimizers.lamb import LAMB
from cbs.optimizers.merit import MERIT
from cbs.training.run import run_trial
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.target import Target

CONFIG = TrialConfig(
    workload=Choice(name="text", options={"validation_sequences": 8, "context": 16}),
    optimizer=Choice(name="merit"),
    lr=4e-3,
    batch_size=4,
    seed=3,
    target=Target(metric="validation_loss", value=1.0),
    max_steps=7,
    probe=None,
)
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
        assert gradient is not None
        assert columns[f"weight_norm.{name}"] == pytest.approx(norm(before[name]), rel=1e-6)
        assert columns[f"gradient_norm.{name}"] == pytest.approx(norm(gradient), rel=1e-6)
        assert columns[f"update_norm.{name}"] == pytest.approx(LR * norm(gradient), rel=1e-4)
        assert columns[f"clipped_share.{name}"] == pytest.approx(float((gradient.abs() > 1).double().mean()))
    assert not [name for name in columns if "trust" in name]


def test_the_trust_ratio_of_lamb_is_the_weight_over_its_direction() -> None:
    model = model_with_gradients()
    weight, gradient = model[0].weight.detach().clone(), model[0].weight.grad  # type: ignore[union-attr, index, operator]
    columns = watched(model, LAMB(model.parameters(), lr=LR))
    direction = gradient / (gradient.abs() + 1e-6)  # Adam's first
    assert columns["trust_ratio.0.weight"] == pytest.approx(norm(weight) / norm(direction), rel=1e-4)
    assert columns["largest_trust_ratio.0.weight"] == pytest.approx(columns["trust_ratio.0.weight"], rel=1e-6)
    assert columns["update_norm.0.weight"] == pytest.approx(LR * norm(weight), rel=1e-4)


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


def test_a_matrix_without_a_ratio_has_none() -> None:
    model = model_with_gradients()
    columns = watched(model, LAMB(model.parameters(), lr=LR, ratio_from_ndim=3))
    assert np.isnan(columns["trust_ratio.0.weight"])
    assert columns["update_norm.0.weight"] > 0


def steps_of(**changes: Any) -> Any:
    return run_trial(dataclasses.replace(CONFIG, **changes))


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


def test_what_cannot_be_seen_is_said() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ConfigError, match="no parameter of two dimensions or more that has a gradient"):
        OptimizerStep().before_step(model, torch.optim.SGD(model.parameters(), lr=LR))
    with pytest.raises(ConfigError, match="optimizer_step has nothing to read"):
        OptimizerStep().columns()
