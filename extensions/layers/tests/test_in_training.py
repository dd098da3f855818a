"""Diagnostics in a trial: what they record of attention and of an optimizer's steps."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.diagnostics import DIAGNOSTICS, build_diagnostics
from cbs.errors import ConfigError
from cbs.optimizers.lamb import LAMB
from cbs.optimizers.merit import MERIT
from cbs.schedules.batch_size import Stage
from cbs.training.assembly import StepColumns
from cbs.training.noise_scale import L2_COLUMNS
from cbs.training.parts import TrainingStep
from cbs.training.run import run_trial
from cbs.trial.checkpoint import Checkpoint
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import Measurement
from cbs.trial.store import Store
from cbs.trial.target import Target
from cbs.trial.trial_files import read_steps
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


def test_one_step_in_so_many() -> None:
    often, seldom = run_trial(CONFIG).steps, run_trial(config_with(diagnostics_every=5)).steps
    for name in COLUMNS:
        assert np.flatnonzero(np.isfinite(seldom[name])).tolist() == [0, 5, 10]
        np.testing.assert_array_equal(seldom[name][::5], often[name][::5])


class Killed(Exception):
    """Stands for the death of the process."""


def killed(rows: Sequence[Measurement]) -> None:
    if rows[-1].step >= 7:
        raise Killed


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_the_columns_survive_a_checkpoint_and_the_disk(every: int, tmp_path: Path) -> None:
    config = config_with(diagnostics_every=every)
    undisturbed = run_trial(config)
    for monitor in (killed, None):
        checkpoint = Checkpoint(tmp_path / "trial.pt", seconds=0.0)
        if monitor is not None:
            with pytest.raises(Killed):
                run_trial(config, checkpoint=checkpoint, monitor=monitor)
        else:
            resumed = run_trial(config, checkpoint=checkpoint)
    assert tuple(resumed.steps) == ("step", "examples", "batch_size", "train_loss", *COLUMNS)
    store = Store(tmp_path)
    store.prepare()
    store.save(resumed)
    file = store.trials / config.trial_id / "steps.parquet"
    for name, column in undisturbed.steps.items():
        np.testing.assert_array_equal(resumed.steps[name], column)
        np.testing.assert_array_equal(read_steps(file)[0][name], column)
    assert tuple(name for name in read_steps(file)[0] if name.startswith("max_attention_logit_")) == tuple(COLUMNS)
    assert store.load(config.trial_id).config == config


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


@pytest.mark.parametrize("name", DIAGNOSTICS.names())
def test_every_registered_diagnostic_says_what_it_is(name: str) -> None:
    (built,) = build_diagnostics([name])
    assert isinstance(built.compiled, bool)
    assert (DIAGNOSTICS[name].__doc__ or "").splitlines()[0].endswith(".")


def test_columns_that_come_later_are_refused() -> None:
    columns = StepColumns(())
    loss = torch.tensor(1.0)

    def append(**values: Tensor) -> None:
        columns.before_step(TrainingStep(1, Stage(2), 2, values={"train_loss": loss, **values}))

    append(a=loss)
    append()
    with pytest.raises(ValueError, match="b did not exist in the first step"):
        append(b=loss)
    columns.flush()
    np.testing.assert_array_equal(columns.arrays()["a"], [1.0, np.nan])


OF_MERIT = TrialConfig(
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


def test_what_cannot_be_seen_is_said() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ConfigError, match="no parameter of two dimensions or more that has a gradient"):
        OptimizerStep().before_step(model, torch.optim.SGD(model.parameters(), lr=LR))
    with pytest.raises(ConfigError, match="optimizer_step has nothing to read"):
        OptimizerStep().columns()
