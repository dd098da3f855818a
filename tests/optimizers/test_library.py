"""Optimizers of torch.optim and pytorch_optimizer by name."""

import copy
import copyreg
import inspect
import io
import math
import pickle
import re
import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from cbs import run_trial
from cbs.errors import ConfigError, UnknownNameError
from cbs.optimizers import OPTIMIZERS, OptimizerSpec, build_optimizer, library
from cbs.optimizers.base import NOT_OPTIONS
from cbs.optimizers.library import INSTALL, UNUSABLE, LibraryOptimizers, _classes, _spec, construct
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


@pytest.mark.parametrize("name", ["nadam", "yogi", "pytorch_optimizer.scion", "pytorch_optimizer.muon"])
def test_defaults_survive_json(name: str) -> None:
    model, other = fresh(), fresh()
    train(model, build(name, model), 3)
    train(other, build(name, other, **OPTIMIZERS[name].defaults), 3)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_an_option_reaches_the_class() -> None:
    (group,) = build("nadam", fresh(), betas=[0.5, 0.75]).param_groups
    assert group["betas"] == (0.5, 0.75)


def test_muons_of_the_library_get_hidden_matrices_and_the_rest() -> None:
    model = fresh()
    hidden, rest = build("pytorch_optimizer.normuon", model).param_groups
    assert hidden["use_muon"]
    assert [id(param) for param in hidden["params"]] == [id(model.hidden.weight)]
    assert not rest["use_muon"]
    assert len(rest["params"]) == len(list(model.parameters())) - 1


def test_muons_of_the_library_get_no_experts_which_they_would_flatten() -> None:
    model = fresh()
    model.experts = nn.Parameter(torch.ones(2, 4, 3))
    hidden, rest = build("pytorch_optimizer.normuon", model).param_groups
    assert [id(param) for param in hidden["params"]] == [id(model.hidden.weight)]
    assert any(param is model.experts for param in rest["params"])


@pytest.mark.parametrize(
    ("name", "lr", "options"),
    [
        ("nadam", -1.0, {}),
        ("yogi", -1.0, {}),
        ("nadam", 0.1, {"betas": [0.9, 1.5]}),
        ("pytorch_optimizer.shampoo", 0.1, {"preconditioning_compute_steps": 0}),
        ("yogi", 0.1, {"betas": "high"}),
    ],
)
def test_refused_values_are_config_errors_of_one_line(name: str, lr: float, options: dict) -> None:
    with pytest.raises(ConfigError, match=f"^optimizer '{name}' refuses its options: .+$"):
        build(name, fresh(), lr, **options)


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'nadam' has no option 'fused'; its options are: betas=\(0.9, 0.999\)"):
        build("nadam", fresh(), fused=True)


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


def test_library_classes_are_named_where_a_paper_would_stand() -> None:
    assert OPTIMIZERS["torch.adam"].paper == "torch.optim.Adam"
    assert OPTIMIZERS["pytorch_optimizer.shampoo"].paper == "pytorch_optimizer.Shampoo"


GEOMETRIES = [("qhm", "l2"), ("tiger", "l1"), ("yogi", "l1"), ("vsgd", "l1"), ("lars", "l2"), ("kron", "nuclear")]


@pytest.mark.parametrize(("name", "geometry"), GEOMETRIES)
def test_geometries(name: str, geometry: str) -> None:
    assert OPTIMIZERS[name].geometry == geometry


WIDTHS = [("torch.sgd", "sgd"), ("qhm", "sgd"), ("yogi", "adam"), ("scion", "none"), ("torch.rmsprop", "adam")]


@pytest.mark.parametrize(("name", "rule"), WIDTHS)
def test_width_rules(name: str, rule: str) -> None:
    assert OPTIMIZERS[name].width_rule == rule


def test_names_of_torch_do_not_import_pytorch_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(library, "_pytorch_optimizer", lambda: asked.append(True))
    assert "nadam" in OPTIMIZERS
    assert OPTIMIZERS["torch.adam"]
    assert OPTIMIZERS["adamw"]
    assert not asked
    assert "yogi" not in OPTIMIZERS
    assert asked


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


def test_a_broken_installation_is_not_taken_for_a_missing_one(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytorch_optimizer.py").write_text("import no_such_module_of_ours\n")
    monkeypatch.delitem(sys.modules, "pytorch_optimizer", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_ours"):
        OPTIMIZERS["yogi"]
    sys.modules.pop("pytorch_optimizer", None)


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


def test_the_table_holds_only_known_names() -> None:
    assert set(UNUSABLE) <= set(EVERY_CLASS)


def test_errors_of_the_library_become_value_errors() -> None:
    with pytest.raises(ValueError, match="learning rate"):
        construct(EVERY_CLASS["pytorch_optimizer.yogi"], list(fresh().parameters()), -1.0)


def test_only_what_is_built_here_is_copied_another_way() -> None:
    """Nothing changes for other instances of the class, and a copy of a copy keeps what the class keeps."""
    before = dict(copyreg.dispatch_table)
    built = construct(EVERY_CLASS["torch.adamw"], list(fresh().parameters()), 0.1)
    built.note = 1  # type: ignore[attr-defined]
    assert copyreg.dispatch_table == before
    again = copy.deepcopy(pickle.loads(pickle.dumps(built)))
    assert type(again) is torch.optim.AdamW
    assert (again.note, again.geometry) == (1, built.geometry)  # type: ignore[attr-defined]
    assert again.__reduce_ex__(2)[1:][1]["param_groups"] is again.param_groups
    other = torch.optim.AdamW(list(fresh().parameters()))
    other.note = 1  # type: ignore[attr-defined]
    assert not hasattr(copy.deepcopy(other), "note")
