"""What is relied on in a workload or an optimizer of one's own, and is told where it does not hold."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.registry.choices import Choice
from cbs.training.run import run_trial
from cbs.trial.config import Schedule, TrialConfig
from cbs.trial.target import Target
from cbs.workloads import RandomExamples, build_workload
from sweeps.launching.launch import resolve
from sweeps.outlook.cost import measure_cost
from sweeps.outlook.own_code import doubts
from sweeps.spec.axes import Axes
from sweeps.spec.spec import Sweep, prototype
from sweeps.spec.workload import _built

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
    noise = itertools.cycle((0.5, 1.5, 0.9))

    def validate(self, model: nn.Module) -> float:
        return super().validate(model) * next(self.noise)


class OneStart(Line):
    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return super().build_model()


class OneDraw(Line):
    def example_losses(self, model: nn.Module, batch: Any) -> Tensor:
        random.seed(0)
        return super().example_losses(model, batch)


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


class ValidationOfTheStream(Line):
    def training_stream(self, generator: torch.Generator) -> Any:
        self.rows = torch.randint(300, (20,), generator=generator)
        return super().training_stream(generator)

    def validate(self, model: nn.Module) -> float:
        return float(self.example_losses(model, tuple(part[self.rows] for part in self.data)).mean())


class ValidationOfTheLatestBatch(Line):
    def example_losses(self, model: nn.Module, batch: Any) -> Tensor:
        self.latest = batch
        return super().example_losses(model, batch)

    def validate(self, model: nn.Module) -> float:
        return float(super().example_losses(model, getattr(self, "latest", self.data)).mean())


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


class Plain(torch.optim.Optimizer):
    """Gradient descent that reads its learning rate elsewhere than where a schedule sets it."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.own = lr

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for param in self.param_groups[0]["params"]:
            param.sub_(param.grad, alpha=self.own)


class NoName(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"eta": lr})


def weights_alone(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([next(model.parameters())], lr=lr)


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
        ("Unseeded", "different examples for the same generator"),
        ("OneOrder", "the same examples for every seed"),
        ("OneBatch", "the same examples in every batch"),
        ("Summed", "times that of its parts"),
        ("OneStart", "build_model sets the seed of random numbers itself: every seed starts with the same weights"),
        ("OneDraw", "a training step sets the seed of random numbers itself: every step draws the same ones"),
        ("NoisyValidation", "validate gives"),
        ("ValidationOfTheSeed", "validate gives"),
        ("ValidationOfTheStream", "validate gives"),
        ("ValidationOfTheLatestBatch", "validate gives"),
        ("ModelPerCall", "resumed from a checkpoint takes other steps"),
        ("Normalised", "buffer '1.running_mean' has other values after smaller passes"),
    ],
)
def test_what_does_not_hold_is_told_once(workload: str, said: str) -> None:
    (line,) = told(workload)
    assert said in line


def test_state_that_no_state_dict_holds_is_told() -> None:
    (line,) = told(optimizer="Outside")
    assert f"(of optimizer {HERE}:Outside or the model)" in line


def test_a_learning_rate_that_is_set_in_vain_is_told() -> None:
    (line,) = told(optimizer="Plain")
    assert "takes the same steps whatever lr is set" in line


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("NoName", "no 'lr' in its param_groups"),
        ("weights_alone", "does not train bias, 1 of 2 parameters"),
        ("OwnSchedule", "the schedule of the sweep sets it"),
    ],
)
def test_an_optimizer_without_a_learning_rate_or_a_parameter_or_that_sets_the_rate_is_refused(
    optimizer: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run_trial(config(optimizer=optimizer))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "must return a torch.nn.Module, got NoneType"),
        (nn.LazyLinear(1), "parameters without a shape"),
        (nn.Identity(), "returned 0 parameters"),
        (nn.Linear(4, 1).requires_grad_(False), "returned 2 parameters, none of which requires a gradient"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model: Any, said: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(Line, "build_model", lambda self: model)
    with pytest.raises(ConfigError, match=said):
        run_trial(config())
    _built.cache_clear()
    sweep = Sweep(
        name="x",
        trial=prototype(workload=Choice(name=f"{HERE}:Line")),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=(4,)),
    )
    with pytest.raises(ConfigError, match=said):
        resolve(sweep)
    _built.cache_clear()


def test_an_optimizer_that_ignores_its_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="every learning rate would give the same run"):
        told(optimizer="Deaf")


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


def test_a_model_that_needs_more_than_one_example_is_timed_at_the_sizes_of_the_sweep() -> None:
    sweep = Sweep(
        name="x",
        trial=prototype(
            workload=Choice(name=f"{HERE}:Normalised"), target=Target(metric="validation_loss", value=0.0), probe=None
        ),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=(4, 8)),
    )
    _built.cache_clear()
    cost = measure_cost(sweep, most_seconds=0.5)
    assert cost.steps["sgd"].seconds(8, steps=1) > 0
    with pytest.raises(ConfigError, match="more than 1 value per channel"):
        measure_cost(sweep.replace(batch_sizes=(1, 8)), most_seconds=0.5)


def test_it_is_told_with_the_cost_of_a_sweep_and_not_of_what_is_built_in() -> None:
    sweep = Sweep(
        name="x",
        trial=prototype(workload=Choice(name=f"{HERE}:OneOrder"), target=Target(metric="validation_loss", value=0.1)),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=(4, 8)),
    )
    _built.cache_clear()
    cost = measure_cost(sweep, most_seconds=1.0)
    assert ["the same examples for every seed" in line for line in cost.doubts] == [True]
