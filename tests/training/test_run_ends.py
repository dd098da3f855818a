"""How a run begins and ends, and the trial as an optimizer sees it that evaluates the model itself."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.optimizers.problem import ModelFunction, ProblemOptimizer
from cbs.training.building import problem_of
from cbs.training.ranks import Ranks
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.trial.ending import ended
from cbs.trial.record import Measurement, TrialStatus
from cbs.workloads import build_workload
from tests.factories import quadratic
from tests.training.test_run import CONFIG, Exploding, Spy, config_with


def test_reached_before_the_first_step() -> None:
    result = run_trial(config_with(target=dataclasses.replace(CONFIG.target, value=1e6)))
    assert result.status is TrialStatus.REACHED
    assert result.steps_to_target == 0.0
    assert "before the first step" in result.message
    assert len(result.steps["step"]) == 0


def test_a_start_just_at_the_target_says_nothing_of_how_far_away_divergence_is() -> None:
    config = config_with(stops_at_target=False)
    start = Measurement(step=0, examples=0, value=config.target.value, train_loss=math.nan, lr=0.0)
    worse = Measurement(step=10, examples=120, value=2 * config.target.value, train_loss=0.4, lr=config.lr)
    assert ended(config, [start, worse], None) is None


class Strict(torch.optim.SGD):
    """Refuses what is no number."""

    def step(self, closure: Any = None) -> Any:
        if self.param_groups[0]["params"][0].grad.isnan().any():
            raise ArithmeticError("no number")
        return super().step(closure)


def test_a_step_that_fails_after_a_loss_that_is_not_finite_is_divergence() -> None:
    workload = Exploding()
    result = run_trial(config_with(optimizer=Choice(name=f"{__name__}:Strict")), workload=workload)
    assert result.status is TrialStatus.DIVERGED
    assert result.message == "training loss is not finite at step 30; step 30 raised ArithmeticError: no number"
    assert len(result.steps["step"]) == len(workload.batches) == 30


class Refusing(Spy):
    """Its metric cannot be measured from the tenth step on."""

    value = math.nan

    def validate(self, model: nn.Module) -> float:
        if len(self.batches) < 10:
            return self.inner.validate(model)
        model.theta.data.fill_(self.value)
        raise ValueError("Input contains NaN.")


def test_a_metric_that_refuses_weights_that_are_not_finite_is_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_trial(config_with(lr=1e-3), workload=Refusing())
    assert result.status is TrialStatus.DIVERGED
    assert "validation_loss is nan at step" in result.message
    monkeypatch.setattr(Refusing, "value", 1.0)
    with pytest.raises(ValueError, match="Input contains NaN"):
        run_trial(config_with(lr=1e-3), workload=Refusing())


def test_all_ranks_end_where_the_first_one_does() -> None:
    class Second(Ranks):
        asked = 0

        def agreed(self, value: float, device: torch.device) -> float:
            self.__class__.asked += isinstance(value, bool)
            return self.asked == 5 if isinstance(value, bool) else 1e3

    second = run_trial(CONFIG, monitor=lambda _: pytest.fail("only the first rank judges"), ranks=Second(rank=1))
    assert (second.status, len(second.evaluations)) == (TrialStatus.PRUNED, 5)


def test_train_loss_is_the_mean_since_the_last_evaluation() -> None:
    result = run_trial(CONFIG)
    assert math.isnan(result.evaluations[0].train_loss)
    for before, after in zip(result.evaluations, result.evaluations[1:], strict=False):
        assert after.train_loss == pytest.approx(result.steps["train_loss"][before.step : after.step].mean())


def test_the_first_update_is_the_optimizers() -> None:
    spy = Spy()
    run_trial(config_with(max_steps=1, probe=None), workload=spy)
    gradient = spy.models[0].curvature * spy.initial + spy.batches[0].mean(0)
    torch.testing.assert_close(spy.models[0].theta.detach(), spy.initial - 0.05 * gradient)


def test_streams_of_one_seed_are_independent() -> None:
    draws = {
        purpose: torch.randn(1000, generator=seeding.generator(0, purpose)) for purpose in ("init", "data", "training")
    }
    correlations = torch.corrcoef(torch.stack(list(draws.values()))) - torch.eye(3)
    assert correlations.abs().max() < 4 / 1000**0.5


OWN = quadratic("mine", {"dimension": 5}, target=0.1, batch_size=4, lr=0.1, seed=3, max_steps=10)
CPU = torch.device("cpu")


def test_its_two_halves_are_the_losses_of_the_workload() -> None:
    workload = build_workload(OWN.workload)
    model = workload.build_model()
    problem = problem_of(workload, model, OWN, CPU, 2)
    batch = workload.training_stream(seeding.generator(0, "data")).next(4)
    outputs = problem.outputs(model, batch)
    torch.testing.assert_close(problem.output_losses(outputs, batch), workload.example_losses(model, batch))
    assert outputs.dtype is torch.float32
    assert problem.model is model
    assert problem.seed == seeding.derive(3, "optimizer")
    assert problem.micro_batch_size == 2


def test_a_workload_that_hides_the_outputs_of_its_model_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^optimizer 'mine' needs .* 'noisy_quadratic' must define outputs"):
        problem_of(SimpleNamespace(), nn.Linear(2, 1), OWN, CPU, None)


def test_attached_an_optimizer_has_the_problem_and_the_model_as_a_function() -> None:
    workload = build_workload(OWN.workload)
    problem = problem_of(workload, workload.build_model(), OWN, CPU, None)
    optimizer = ProblemOptimizer(problem.model.parameters(), {"lr": 0.1})
    optimizer.attach(problem)
    assert optimizer.problem is problem
    assert isinstance(optimizer.function, ModelFunction)
