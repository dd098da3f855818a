"""What is relied on in a workload or an optimizer of one's own, and is told where it does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.choices import Choice
from cbs.config import Schedule, TrialConfig
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.target import Target
from cbs.training import run_trial
from cbs.workloads import RandomExamples, build_workload
from sweeps.outlook.cost import measure_cost
from sweeps.outlook.own_code import doubts
from sweeps.spec import Sweep
from sweeps.workload import _built

HERE = __name__


class Line:
    """A regression that keeps everything."""

    metric, metric_unit, direction, default_target = "validation_loss", "1", "below", 0.1
    example_unit, tokens_per_example, data_hash = "point", None, None

    def __init__(self) -> None:
        points = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        self.data = points, points.sum(dim=1)

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def training_stream(self, generator: torch.Generator) -> Any:
        return RandomExamples(self.data, generator)

    def example_losses(self, model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0])[:, 0] - batch[1]) ** 2

    def validate(self, model: nn.Module) -> float:
        return float(self.example_losses(model, self.data).mean())


class Rows:
    """Rows by a function of how many."""

    def __init__(self, data: tuple[Tensor, Tensor], rows: Callable[[int], Tensor]) -> None:
        self._data, self._rows = data, rows

    def next(self, examples: int) -> Any:
        return tuple(part[self._rows(examples)] for part in self._data)


class Unseeded(Line):
    def training_stream(self, generator: torch.Generator) -> Any:
        return Rows(self.data, lambda examples: torch.randint(300, (examples,)))


class OneOrder(Line):
    def training_stream(self, generator: torch.Generator) -> Any:
        return RandomExamples(self.data, torch.Generator().manual_seed(0))


class OneBatch(Line):
    def training_stream(self, generator: torch.Generator) -> Any:
        order = torch.randperm(300, generator=generator)
        return Rows(self.data, lambda examples: order[:examples])


class Summed(Line):
    def example_losses(self, model: nn.Module, batch: Any) -> Tensor:
        losses = super().example_losses(model, batch)
        return losses.sum().expand(len(losses))


class NoisyValidation(Line):
    def validate(self, model: nn.Module) -> float:
        return super().validate(model) * float(np.random.default_rng().uniform(0.5, 1.5))


class ValidationOfTheSeed(Line):
    def build_model(self) -> nn.Module:
        self.rows = torch.randint(300, (20,))
        return super().build_model()

    def validate(self, model: nn.Module) -> float:
        return float(self.example_losses(model, tuple(part[self.rows] for part in self.data)).mean())


class ModelPerCall(Line):
    calls = 0

    def build_model(self) -> nn.Module:
        self.calls += 1
        return nn.Sequential(nn.Linear(4, 2 + self.calls), nn.Linear(2 + self.calls, 1))


class RandomSubset(Line):
    """Draws its validation examples from torch, which a trial keeps the same."""

    def validate(self, model: nn.Module) -> float:
        rows = torch.randint(300, (20,))
        return float(self.example_losses(model, tuple(part[rows] for part in self.data)).mean())


class NoisyLosses(Line):
    """Losses with noise of their own, as a diffusion model has them."""

    def example_losses(self, model: nn.Module, batch: Any) -> Tensor:
        return super().example_losses(model, batch) * (0.5 + torch.rand(len(batch[0])))

    def validate(self, model: nn.Module) -> float:
        return float(super().example_losses(model, self.data).mean())


class Outside(torch.optim.Optimizer):
    """Momentum that no state dict holds."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.sums: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                found = self.sums.setdefault(param, torch.zeros_like(param)).mul_(0.9).add_(param.grad)
                param.sub_(found, alpha=group["lr"])


class Deaf(torch.optim.SGD):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=0.05)


class OwnSchedule(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            group["lr"] *= 0.9


def config(workload: str = "Line", optimizer: str = "adamw", **changes: Any) -> TrialConfig:
    name = optimizer if optimizer in OPTIMIZERS else f"{HERE}:{optimizer}"
    plain = {"lr": 0.01, "batch_size": 8, "seed": 0, "max_steps": 20, "probe": None}
    return TrialConfig(
        workload=Choice(name=f"{HERE}:{workload}"),
        optimizer=Choice(name=name),
        target=Target(metric="validation_loss", value=0.1),
        schedule=Schedule(warmup_examples=80),
        **{**plain, **changes},
    )


def told(workload: str = "Line", optimizer: str = "adamw") -> list[str]:
    asked = config(workload, optimizer)
    return list(doubts(asked, build_workload(asked.workload)))


@pytest.mark.parametrize("workload", ["Line", "RandomSubset", "NoisyLosses"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_holds_is_not_doubted(workload: str, optimizer: str) -> None:
    assert told(workload, optimizer) == []


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("Unseeded", "other examples for the same generator"),
        ("OneOrder", "the same examples for every seed"),
        ("OneBatch", "the same examples in every batch"),
        ("Summed", "the loss of a batch is 2 times that of its halves"),
        ("NoisyValidation", "validate of one model gives"),
        ("ValidationOfTheSeed", "validate of one model gives"),
        ("ModelPerCall", "goes on from a checkpoint takes other steps"),
    ],
)
def test_what_does_not_hold_is_told_once(workload: str, said: str) -> None:
    (line,) = told(workload)
    assert said in line


def test_state_that_no_state_dict_holds_is_told() -> None:
    (line,) = told(optimizer="Outside")
    assert f"(of optimizer {HERE}:Outside or the model)" in line


def test_an_optimizer_that_ignores_its_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="every learning rate would train alike"):
        told(optimizer="Deaf")


def test_an_optimizer_that_sets_its_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="which the schedule of the sweep sets"):
        run_trial(config(optimizer="OwnSchedule"))


def test_a_validation_that_draws_is_on_the_same_data_every_time_and_leaves_training_alone() -> None:
    asked = config("RandomSubset", lr=1e-9)
    values = [row.value for row in run_trial(asked).evaluations]
    assert values == pytest.approx([values[0]] * len(values), rel=1e-5)


class Normalised(Line):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_batch_normalisation_is_not_cut_to_what_memory_holds() -> None:
    asked = config("Normalised", lr=1e-9, max_steps=1)
    with pytest.raises(MemoryError, match="is another model"):
        run_trial(asked, most=4)
    for fits in (run_trial(asked), run_trial(asked, most=8), run_trial(config("Line", max_steps=1), most=4)):
        assert fits.final_step == 1


def test_it_is_told_with_the_cost_of_a_sweep_and_not_of_what_is_built_in() -> None:
    sweep = Sweep(
        name="x",
        workload=Choice(name=f"{HERE}:OneOrder"),
        optimizers=(Choice(name="sgd"),),
        batch_sizes=(4, 8),
        target=Target(metric="validation_loss", value=0.1),
    )
    _built.cache_clear()
    cost = measure_cost(sweep, most_seconds=1.0)
    assert cost is not None
    assert ["the same examples for every seed" in line for line in cost.doubts] == [True]
