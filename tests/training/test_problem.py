"""A trial as an optimizer sees it that evaluates the model itself."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.optimizers.problem import ModelFunction, ProblemOptimizer
from cbs.training.building import problem_of
from cbs.workloads import build_workload
from tests.factories import quadratic

CONFIG = quadratic("mine", {"dimension": 5}, target=0.1, batch_size=4, lr=0.1, seed=3, max_steps=10)
CPU = torch.device("cpu")


def test_its_two_halves_are_the_losses_of_the_workload() -> None:
    workload = build_workload(CONFIG.workload)
    model = workload.build_model()
    problem = problem_of(workload, model, CONFIG, CPU, 2)
    batch = workload.training_stream(seeding.generator(0, "data")).next(4)
    outputs = problem.outputs(model, batch)
    torch.testing.assert_close(problem.output_losses(outputs, batch), workload.example_losses(model, batch))
    assert outputs.dtype is torch.float32
    assert problem.model is model
    assert problem.seed == seeding.derive(3, "optimizer")
    assert problem.micro_batch_size == 2


def test_a_workload_that_hides_the_outputs_of_its_model_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^optimizer 'mine' needs .* 'noisy_quadratic' must define outputs"):
        problem_of(SimpleNamespace(), nn.Linear(2, 1), CONFIG, CPU, None)


def test_attached_an_optimizer_has_the_problem_and_the_model_as_a_function() -> None:
    workload = build_workload(CONFIG.workload)
    problem = problem_of(workload, workload.build_model(), CONFIG, CPU, None)
    optimizer = ProblemOptimizer(problem.model.parameters(), {"lr": 0.1})
    optimizer.attach(problem)
    assert optimizer.problem is problem
    assert isinstance(optimizer.function, ModelFunction)
