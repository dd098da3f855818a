"""Optimizers of one's own, named as ``module:name``; the listing of all: complete, measured, and narrow enough."""

import inspect
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_optimizer
import torch
from rich.console import Console
from torch import nn

from cbs import run_trial
from cbs.errors import ConfigError
from cbs.noise_scale import matched
from cbs.optimizers import LAMB, MERIT, OPTIMIZERS, build_optimizer
from cbs.optimizers.problem import Problem, ProblemOptimizer
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.workloads.text_parts import GPT, SIZES
from sweeps.recipes import RECIPES
from sweeps.spec.catalogue import Entry, catalogue, details, overview, state_bytes_per_parameter
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


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return catalogue()


def printed(renderable: object) -> str:
    file = io.StringIO()
    Console(file=file, width=80, highlight=False).print(renderable)
    return file.getvalue()


def test_shows_everything_within_eighty_columns(entries: list[Entry]) -> None:
    table = printed(overview(entries))
    assert all(len(line) <= 80 for line in table.splitlines())
    for entry in entries:
        assert entry.spec.name in table
        page = printed(details(entry))
        assert all(len(line) <= 80 for line in page.splitlines())
        assert all(option in page for option in (*entry.spec.defaults, *entry.spec.options_in_examples))


# Two moments, one, and none, in float32; a step counter per tensor adds less than 0.01 bytes per parameter.
@pytest.mark.parametrize(("name", "expected"), [("adamw", 8), ("lamb", 8), ("merit", 8), ("sgd", 4)])
def test_state_of_known_size(name: str, expected: float) -> None:
    assert state_bytes_per_parameter(name) == pytest.approx(expected, abs=0.01)


def test_the_command_it_shows_for_an_option_is_accepted(entries: list[Entry]) -> None:
    from sweeps.recipes import RECIPES
    from sweeps.spec.overrides import override

    for entry in entries:
        if not entry.spec.defaults:
            continue
        page = printed(details(entry)).replace("\n", " ")
        setting = " ".join(page.split("--set '")[1].split("'")[0].split())
        (choice,) = override(
            RECIPES["quick"]().replace(optimizers=(Choice(name=entry.spec.name),)), [setting]
        ).axes.optimizers
        build_optimizer(choice, GPT(SIZES["30k"], 128), entry.spec.lr_grid[0])


def betas_of(build: Callable[..., object]) -> tuple[float, ...]:
    return inspect.signature(build).parameters["betas"].default


PUBLISHED = {
    "adam": betas_of(torch.optim.Adam),
    "adamw": betas_of(torch.optim.AdamW),
    "schedule_free": betas_of(pytorch_optimizer.ScheduleFreeAdamW),
    "lamb": betas_of(LAMB),
    "merit": betas_of(MERIT),
}


def test_betas_that_are_not_the_published_ones_are_said_to_be(
    entries: list[Entry], run: Callable[..., tuple[int, str, str]]
) -> None:
    unlike = {entry.spec.name: dict(entry.spec.published) for entry in entries if entry.spec.published}
    assert unlike == {name: {"betas": betas} for name, betas in PUBLISHED.items()}
    for entry in entries:
        published = entry.spec.published.get("betas")
        assert published is None or published != entry.spec.defaults["betas"]
        assert ("published with [0.9, 0.999]" in printed(details(entry))) == (published is not None)
    _, out, _ = run("optimizers", "merit")
    assert "betas = [0.9, 0.99] in a sweep, published with [0.9, 0.999]" in out
    assert "use: cbs sweep --optim merit --set 'merit.betas=[0.9, 0.999]'" in out
    _, out, _ = run("optimizers", "merit", "--json")
    assert json.loads(out)[0]["published"] == {"betas": [0.9, 0.999]}
