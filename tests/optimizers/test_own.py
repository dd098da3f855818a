"""Optimizers of the user's own, named as ``module:name``."""

from pathlib import Path

import pytest
import torch
from torch import nn

from cbs import run_trial
from cbs.errors import ConfigError
from cbs.noise_scale import matched
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.problem import Problem, ProblemOptimizer
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from sweeps.recipes import RECIPES
from tests.factories import quadratic

MODULE = '''
import torch
from cbs.optimizers import LAMB, optimizer

class Halved(torch.optim.SGD):
    """SGD at half the learning rate."""
    geometry, family, lr_grid, decoupled_decay = "l1", "sgd", (0.1, 0.2, 0.4), True
    def __init__(self, params, lr, *, share=0.5, weight_decay=0.0, foreach=None, hook=print):
        super().__init__(params, lr=lr * share, weight_decay=weight_decay)

class Damped(LAMB):
    def __init__(self, params, lr=0.25, *, damping=1.0, **lamb):
        super().__init__(params, lr, **lamb)

class Ungiven(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr)

class Rateless(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=1.0)

def both(model, lr=1e-2, *, momentum=0.5):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)

def nothing(model, lr=1.0):
    return None

@optimizer("registered_by_its_own_file", lr_grid=(1.0, 2.0), family="sgd", geometry="l2", paper="ours")
class Registered(torch.optim.SGD):
    """Says it all itself."""
    def __init__(self, params, lr, *, momentum=0.25):
        super().__init__(params, lr=lr, momentum=momentum)

class NoOptimizer: ...
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"own_{abs(hash(request.node.name))}"
    text = MODULE.replace("registered_by_its_own_file", f"registered_by_{name}")
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # Discovery first, so that the entry that the module registers is taken away again.
    OPTIMIZERS.names()
    monkeypatch.setattr(OPTIMIZERS, "_entries", dict(OPTIMIZERS._entries))
    return name


def test_a_class_says_what_a_sweep_needs(module: str) -> None:
    spec = OPTIMIZERS[f"{module}:Halved"]
    assert spec.defaults == {"share": 0.5, "weight_decay": 0.0}
    assert (spec.geometry, spec.family, spec.lr_grid) == ("l1", "sgd", (0.1, 0.2, 0.4))
    assert spec.summary == "SGD at half the learning rate."
    assert spec.options_in_examples == ("weight_decay_timescale",)
    built = build_optimizer(Choice(name=f"{module}:Halved", options={"share": 0.25}), nn.Linear(2, 1), 0.8)
    assert built.param_groups[0]["lr"] == 0.2
    assert matched(built) == "l1"


def test_a_function_takes_the_model(module: str) -> None:
    spec = OPTIMIZERS[f"{module}:both"]
    assert spec.defaults == {"momentum": 0.5}
    assert spec.build(nn.Linear(2, 1), 0.125).param_groups[0]["lr"] == 0.125
    with pytest.raises(ConfigError, match="returns NoneType, not an optimizer"):
        build_optimizer(Choice(name=f"{module}:nothing"), nn.Linear(2, 1), 0.1)


def test_a_registered_class_speaks_for_itself(module: str) -> None:
    spec = OPTIMIZERS[f"{module}:Registered"]
    assert (spec.name, spec.paper, spec.lr_grid) == (f"{module}:Registered", "ours", (1.0, 2.0))
    assert spec.build(nn.Linear(2, 1), 0.5).param_groups[0]["momentum"] == 0.25


def test_learning_rates_are_asked_for(module: str) -> None:
    sweep = RECIPES["quick"]().replace(optimizers=(Choice(name=f"{module}:Ungiven"),))
    with pytest.raises(ConfigError, match="has no learning rates to start from: give --lrs"):
        sweep.lr_grid(f"{module}:Ungiven")
    assert sweep.replace(lrs=(0.1, 0.2)).lr_grid(f"{module}:Ungiven") == (0.1, 0.2)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Rateless", r"takes no lr; its signature must be \(params, lr, ...\)"),
        ("NoOptimizer", "derive it from torch.optim.Optimizer"),
        ("Missing", "has no function 'Missing'"),
    ],
)
def test_what_is_no_optimizer(module: str, entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = OPTIMIZERS[f"{module}:{entry}"]


def test_trains_like_the_entry_it_equals() -> None:
    def steps(name: str) -> tuple[TrialStatus, object]:
        config = quadratic(
            Choice(name=name, options={"momentum": 0.9}), target=0.5, lr=0.1, batch_size=64, seed=0, max_steps=200
        )
        result = run_trial(config)
        return result.status, [one.value for one in result.evaluations]

    assert steps("torch.optim:SGD") == steps("torch.sgd")


class Idle(ProblemOptimizer):
    """Takes its batch and does nothing."""

    def step(self, closure: object = None) -> None:
        self.take_batch()


def idle() -> Idle:
    return Idle(nn.Linear(2, 1).parameters(), {"lr": 0.1})


def test_a_batch_serves_one_step() -> None:
    optimizer = idle()
    optimizer.observe(torch.zeros(3))
    optimizer.step()
    with pytest.raises(RuntimeError, match="Idle needs the batch of the step: call observe"):
        optimizer.step()


def test_a_problem_is_needed() -> None:
    with pytest.raises(RuntimeError, match="call attach"):
        _ = idle().problem


@pytest.mark.parametrize("frozen", [True, False])
def test_parameters_that_are_frozen_or_unfrozen_later_are_refused(frozen: bool) -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(frozen)
    optimizer = Idle(model.parameters(), {"lr": 0.1})
    unused = dict.fromkeys(("outputs", "output_losses", "curvature_sample"), lambda *_: torch.zeros(()))
    optimizer.attach(Problem(model=model, **unused))
    optimizer.observe(torch.zeros(3))
    optimizer.step()
    model.bias.requires_grad_(not frozen)
    optimizer.observe(torch.zeros(3))
    with pytest.raises(RuntimeError, match="frozen or unfrozen after Idle was attached"):
        optimizer.step()
