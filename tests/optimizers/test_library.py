"""Optimizers of torch.optim and pytorch_optimizer by name."""

import inspect
import io
import math
import re
import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from cbs import run_trial
from cbs.errors import ConfigError, UnknownNameError
from cbs.optimizers import OPTIMIZERS, OptimizerSpec, build_optimizer
from cbs.optimizers.base import NOT_OPTIONS
from cbs.optimizers.library import INSTALL, UNUSABLE, LibraryOptimizers, _classes, _spec
from cbs.optimizers.matching import matched
from cbs.optimizers.widths import POWERS
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target
from tests.optimizers.test_every_optimizer import TokenClassifier

pytest.importorskip("pytorch_optimizer")
EVERY_CLASS = {**_classes("torch"), **_classes("pytorch_optimizer")}
TOKENS = torch.arange(16)


def fresh() -> nn.Module:
    torch.manual_seed(1)
    return TokenClassifier()


def loss_of(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(TOKENS), TOKENS % 4)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return [*losses, loss_of(model).item()]


def build(name: str, model: nn.Module, lr: float = 1e-3, **options: object) -> torch.optim.Optimizer:
    return build_optimizer(Choice(name=name, options=options), model, lr)


@pytest.mark.parametrize(
    ("name", "module", "kind"),
    [
        ("sgd", "torch.optim", "SGD"),
        ("lamb", "cbs.optimizers.lamb", "LAMB"),
        ("nadam", "torch.optim", "NAdam"),
        ("adamax", "torch.optim", "Adamax"),
        ("adadelta", "torch.optim", "Adadelta"),
        ("torch.adam", "torch.optim", "Adam"),
        ("yogi", "pytorch_optimizer", "Yogi"),
        ("pytorch_optimizer.lamb", "pytorch_optimizer", "Lamb"),
        ("pytorch_optimizer.muon", "pytorch_optimizer", "Muon"),
        ("pytorch_optimizer.adamax", "pytorch_optimizer", "AdaMax"),
    ],
)
def test_own_entries_come_first_then_torch(name: str, module: str, kind: str) -> None:
    spec = OPTIMIZERS[name]
    assert spec.name == name
    built = type(build(name, fresh()))
    assert built.__name__ == kind
    assert built.__module__.startswith(module)
    assert name in OPTIMIZERS


def test_names_of_the_fallback_are_served_and_not_listed_among_the_own() -> None:
    assert not {"nadam", "yogi", "torch.adam"} & set(OPTIMIZERS.names())
    more = OPTIMIZERS.more_names()
    assert {"nadam", "yogi", "torch.adam", "torch.sgd", "pytorch_optimizer.lamb"} <= set(more)
    assert not set(more) & set(OPTIMIZERS.names())
    assert all(OPTIMIZERS[name].name == name for name in more)


@pytest.mark.parametrize("name", ["nadam", "torch.adam", "yogi", "pytorch_optimizer.sgdw"])
def test_options_are_the_arguments_of_the_class_with_its_defaults(name: str) -> None:
    spec = OPTIMIZERS[name]
    signature = inspect.signature(type(build(name, fresh()))).parameters
    assert {"betas", "momentum"} & spec.defaults.keys()
    assert not spec.defaults.keys() & {*NOT_OPTIONS, "params", "kwargs"}
    assert all(signature[option].default == value for option, value in spec.defaults.items())
    assert list(spec.lr_grid)[3] == signature["lr"].default
    assert all(high == 2 * low for low, high in pairwise(spec.lr_grid))
    assert len(spec.lr_grid) == 7


def test_muons_of_the_library_get_hidden_matrices_and_the_rest() -> None:
    model = fresh()
    hidden, rest = build("pytorch_optimizer.normuon", model).param_groups
    assert hidden["use_muon"]
    assert [id(param) for param in hidden["params"]] == [id(model.hidden.weight)]
    assert not rest["use_muon"]
    assert len(rest["params"]) == len(list(model.parameters())) - 1


@pytest.mark.parametrize(("name", "near"), [("nadamm", "nadam"), ("Yogi", "yogi"), ("torch.nadm", "torch.nadam")])
def test_the_nearest_names_of_the_libraries_are_suggested(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        OPTIMIZERS[name]
    message = str(caught.value)
    assert f"did you mean {near}" in message
    libraries = "every optimizer of torch.optim and pytorch_optimizer, and your own package.module:name"
    assert message.endswith(f"{OPTIMIZERS.names()[-1]}, {libraries}")
    assert "\n" not in message
    assert name not in OPTIMIZERS


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_swept_says_why(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OPTIMIZERS[name]
    assert str(caught.value) == f"optimizer {name!r} cannot be used here: {UNUSABLE[name]}"
    assert name not in OPTIMIZERS
    assert name not in OPTIMIZERS.more_names()


def test_a_plain_name_skips_what_cannot_be_swept() -> None:
    # pytorch_optimizer's class of this name sets its own learning rate; torch's takes one.
    assert isinstance(build("asgd", fresh()), torch.optim.ASGD)
    with pytest.raises(ConfigError, match="closure"):
        OPTIMIZERS["lbfgs"]


@pytest.mark.parametrize("name", sorted(EVERY_CLASS.keys() - UNUSABLE.keys()))
def test_entries_describe_themselves(name: str) -> None:
    spec = OPTIMIZERS[name]
    assert spec.geometry == matched(spec.build(fresh(), 1e-3))
    assert spec.geometry in ("l2", "l1", "nuclear")
    assert spec.width_rule in POWERS
    assert spec.family
    assert spec.paper
    assert re.fullmatch(r"[^\n]+[^.:]\.", spec.summary)


WIDTHS = [("torch.sgd", "sgd"), ("qhm", "sgd"), ("yogi", "adam"), ("scion", "none"), ("torch.rmsprop", "adam")]


@pytest.mark.parametrize(("name", "rule"), WIDTHS)
def test_width_rules(name: str, rule: str) -> None:
    assert OPTIMIZERS[name].width_rule == rule


class TestWithoutPytorchOptimizer:
    @pytest.fixture(autouse=True)
    def blocked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)

    @pytest.mark.parametrize("name", ["adamw", "adam", "nadam", "torch.rmsprop"])
    def test_own_names_and_those_of_torch_work(self, name: str) -> None:
        assert len(build(name, fresh()).param_groups) == 1
        assert name in OPTIMIZERS

    @pytest.mark.parametrize("name", ["signum", "pytorch_optimizer.lamb", "yogi"])
    def test_the_others_say_how_to_install_it(self, name: str) -> None:
        with pytest.raises(ConfigError, match=INSTALL) as caught:
            build(name, fresh())
        assert "\n" not in str(caught.value)

    def test_names_are_those_of_torch(self) -> None:
        assert {name.split(".")[0] for name in LibraryOptimizers().names() if "." in name} == {"torch"}
        assert "yogi" not in OPTIMIZERS


@pytest.mark.parametrize("name", ["torch.nadam", "schedulefreeadamw", "muonclip"])
def test_trains_in_a_trial(name: str) -> None:
    trial = TrialConfig(
        workload=Choice(name="text", options={"context": 8, "validation_sequences": 64}),
        optimizer=Choice(name=name),
        lr=OPTIMIZERS[name].lr_grid[3],
        batch_size=4,
        seed=0,
        target=Target(metric="validation_loss", value=1.0),
        max_steps=20,
    )
    result = run_trial(trial)
    assert result.status is TrialStatus.BUDGET_EXHAUSTED
    assert result.evaluations[-1].value < result.evaluations[0].value


def fault(spec: OptimizerSpec, kind: type[torch.optim.Optimizer]) -> str:
    """Why a class cannot be swept, empty if it can: trains at a learning rate of its grid and resumes bitwise."""
    falling = set()
    try:
        for lr in spec.lr_grid:
            model = fresh()
            losses = train(model, spec.build(model, lr), 30)
            if all(map(math.isfinite, losses)) and losses[-1] < losses[0]:
                falling.add(tuple(losses))
        if len(falling) < 2:
            return "the loss does not fall, or not in dependence of the learning rate"
        lr = spec.lr_grid[3]
        model = fresh()
        optimizer = spec.build(model, lr)
        train(model, optimizer, 5)
        file = io.BytesIO()
        random = torch.get_rng_state()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        train(model, optimizer, 5)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        resumed = fresh()
        resumed.load_state_dict(saved["model"])
        other = spec.build(resumed, lr)
        other.load_state_dict(saved["optimizer"])
        torch.set_rng_state(random)
        train(resumed, other, 5)
    except Exception as error:  # noqa: BLE001  whatever a class raises is what this reports
        return f"{type(error).__name__}: {error}"
    if not all(torch.equal(one, two) for one, two in zip(model.parameters(), resumed.parameters(), strict=True)):
        return "a resumed run differs"
    methods = "".join(
        inspect.getsource(value) for key, value in vars(kind).items() if key.startswith(("step", "_step"))
    )
    return "it writes the learning rate of its groups" if re.search(r"group\['lr'\] = ", methods) else ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(EVERY_CLASS))
def test_the_table_of_what_cannot_be_swept_is_exact(name: str) -> None:
    found = fault(_spec(name, name, EVERY_CLASS[name]), EVERY_CLASS[name])
    assert bool(found) == (name in UNUSABLE), found or "it works: take it out of the table"
