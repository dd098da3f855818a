"""What every optimizer of the registry must do; a new entry is tested without an edit here."""

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import cbs.optimizers
from cbs.errors import ConfigError
from cbs.noise_scale import GEOMETRIES, matched
from cbs.optimizers import OPTIMIZERS, build_optimizer, spectral
from cbs.optimizers.problem import Problem, ProblemOptimizer
from cbs.optimizers.scaling import SCALED_OPTIONS
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, TrialConfig
from cbs.trial.record import TrialResult
from cbs.trial.target import Target
from cbs.workloads.streams import RandomExamples
from tests.kinds import kinds, kinds_of

EVERY = pytest.mark.parametrize("name", OPTIMIZERS.names())
Batch = Any


class TokenClassifier(nn.Module):
    """Embedding, normalisation, a hidden layer and a head: every kind of parameter a small language model has."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.norm(self.tokens(tokens)))))


class Vector(nn.Module):
    """A single one-dimensional parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(12))

    def forward(self, scales: Tensor) -> Tensor:
        return scales * self.w


class Case(NamedTuple):
    """A model, its data and its loss in two halves."""

    model: nn.Module
    batch: Batch
    losses: Callable[[Tensor, Batch], Tensor]
    curvature_sample: Callable[[Tensor, Batch, torch.Generator], Tensor]

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0])

    def loss(self) -> Tensor:
        return self.losses(self.outputs(self.model, self.batch), self.batch).mean()

    def optimizer(self, choice: Choice, lr: float, batch_size: int = 1) -> torch.optim.Optimizer:
        optimizer = build_optimizer(choice, self.model, lr, batch_size)
        if isinstance(optimizer, ProblemOptimizer):
            optimizer.attach(
                Problem(
                    model=self.model,
                    outputs=self.outputs,
                    output_losses=self.losses,
                    curvature_sample=self.curvature_sample,
                )
            )
        return optimizer


def classification() -> Case:
    torch.manual_seed(1)
    tokens = torch.arange(16)

    def sample(outputs: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        probabilities = outputs.detach().softmax(-1)
        drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        return probabilities - nn.functional.one_hot(drawn, outputs.shape[1])

    return Case(
        TokenClassifier(),
        (tokens, tokens % 4),
        lambda outputs, batch: nn.functional.cross_entropy(outputs, batch[1], reduction="none"),
        sample,
    )


def least_squares() -> Case:
    torch.manual_seed(2)
    inputs, truth = torch.randn(32, 6), torch.randn(6, 3)
    return Case(nn.Linear(6, 3, bias=False), (inputs, inputs @ truth), squared_error, normal_sample)


def quadratic() -> Case:
    torch.manual_seed(3)
    scales = torch.logspace(-1, 0, 12).sqrt().expand(16, -1)
    return Case(Vector(), (scales, torch.zeros(16, 12)), squared_error, normal_sample)


def squared_error(outputs: Tensor, batch: Batch) -> Tensor:
    return 0.5 * (outputs - batch[1]).square().sum(-1)


def normal_sample(outputs: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
    return torch.randn(outputs.shape, generator=generator)


PROBLEMS = pytest.mark.parametrize("problem", kinds([classification], [least_squares, quadratic]))


def train(case: Case, optimizer: torch.optim.Optimizer, steps: int) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        case.loss().backward()
        if isinstance(optimizer, ProblemOptimizer):
            optimizer.observe(case.batch)
        optimizer.step()
    return case.loss().item()


def vector(name: str, lr: float = 0.1, **options: object) -> torch.optim.Optimizer:
    return quadratic().optimizer(Choice(name=name, options=options), lr)


@EVERY
@PROBLEMS
def test_halves_the_loss_at_some_learning_rate_of_its_grid(name: str, problem: Callable[[], Case]) -> None:
    start = problem().loss().item()
    ends = []
    for lr in OPTIMIZERS[name].lr_grid[::-1]:
        case = problem()
        ends.append(train(case, case.optimizer(Choice(name=name), lr), 50))
        if ends[-1] < 0.5 * start:
            return
    pytest.fail(f"started at {start}, ended at {ends}")


@EVERY
def test_resumes_bitwise_without_matrices(name: str) -> None:
    lr = OPTIMIZERS[name].lr_grid[1]
    case = quadratic()
    optimizer = case.optimizer(Choice(name=name), lr)
    train(case, optimizer, 5)
    file = io.BytesIO()
    torch.save({"model": case.model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(case, optimizer, 5)
    file.seek(0)
    checkpoint = torch.load(file)
    resumed = quadratic()
    resumed.model.load_state_dict(checkpoint["model"])
    other = resumed.optimizer(Choice(name=name), 10 * lr)
    other.load_state_dict(checkpoint["optimizer"])
    train(resumed, other, 5)
    for param, again in zip(case.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(param, again)


class Words:
    """The words and classes of :func:`classification` as a workload."""

    metric, metric_unit, direction, default_target = "validation_loss", "nats", "below", 0.5
    example_unit, tokens_per_example, data_hash = "word", None, None

    def __init__(self) -> None:
        case = classification()
        self.batch, self.outputs = case.batch, case.outputs
        self.output_losses, self.curvature_sample = case.losses, case.curvature_sample

    def build_model(self) -> nn.Module:
        return TokenClassifier()

    def training_stream(self, generator: torch.Generator) -> RandomExamples:
        return RandomExamples(self.batch, generator)

    def example_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.output_losses(self.outputs(model, batch), batch)

    def validate(self, model: nn.Module) -> float:
        return self.example_losses(model, self.batch).mean().item()


def trial(name: str, lr: float, steps: int, **options: Any) -> TrialResult:
    config = TrialConfig(
        workload=Choice(name="words"),
        optimizer=Choice(name=name, options=options),
        lr=lr,
        batch_size=8,
        seed=1,
        target=Target(metric="validation_loss", value=1e-9),
        max_steps=steps,
        divergence_factor=1e300,
        evaluation=EvaluationPlan(growth=10.0, far_growth=10.0),
    )
    return run_trial(config, workload=Words())


@pytest.mark.parametrize("name", kinds_of(OPTIMIZERS.names(), OPTIMIZERS.names()[::3]))
def test_a_hundredfold_learning_rate_ends_the_trial_and_raises_nothing(name: str) -> None:
    assert trial(name, 100 * OPTIMIZERS[name].lr_grid[-1], 30).status.final


AUTO = [name for name in OPTIMIZERS.names() if "auto" in OPTIMIZERS[name].defaults.values()]


@pytest.mark.parametrize("name", ["sgd", *AUTO])
@pytest.mark.parametrize("fast", [False, True])
def test_a_record_says_what_was_taken_for_auto(name: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "FAST_BFLOAT16", fast)
    monkeypatch.setattr(spectral, "SMALL", 1)
    found = trial(name, OPTIMIZERS[name].lr_grid[0], 2).decided
    assert found.keys() == {option for option, value in OPTIMIZERS[name].defaults.items() if value == "auto"}
    assert found.get("ns_dtype") in (None, "bfloat16" if fast else "float32")


def test_what_was_asked_for_is_not_decided() -> None:
    assert trial("muon", 1e-2, 2, ns_dtype="float32").decided == {}


@EVERY
@pytest.mark.parametrize("steps", [0, 2])
def test_sparse_gradients_are_refused_before_anything_moves(name: str, steps: int) -> None:
    case = classification()
    optimizer = case.optimizer(Choice(name=name), OPTIMIZERS[name].lr_grid[0])
    train(case, optimizer, steps)
    table = case.model.tokens
    table.sparse = True
    optimizer.zero_grad()
    case.loss().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    if isinstance(optimizer, ProblemOptimizer):
        optimizer.observe(case.batch)
    before = copy.deepcopy(case.model.state_dict())
    with pytest.raises(RuntimeError, match=f"^{name} needs dense gradients; build the embedding with sparse=False$"):
        optimizer.step()
    for key, value in case.model.state_dict().items():
        assert torch.equal(value, before[key])
    table.sparse = False
    train(case, optimizer, 2)
    assert not torch.equal(table.weight, before["tokens.weight"])


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_goes_on_from_the_state_of_torchs_distributed_checkpoints(name: str, full: bool) -> None:
    how, lr = StateDictOptions(full_state_dict=full), OPTIMIZERS[name].lr_grid[0]
    case, resumed = classification(), classification()
    optimizer, other = case.optimizer(Choice(name=name), lr), resumed.optimizer(Choice(name=name), 2 * lr)
    train(case, optimizer, 2)
    if isinstance(other, ProblemOptimizer):  # torch has the others make their state by a step without gradients
        train(resumed, other, 1)
    lists = any(isinstance(value, list) for kept in optimizer.state.values() for value in kept.values())
    with pytest.raises(KeyError) if full and lists else nullcontext():  # torch does not take lists apart
        model, state = copy.deepcopy(get_state_dict(case.model, optimizer, options=how))
        set_state_dict(resumed.model, other, model_state_dict=model, optim_state_dict=state, options=how)
        train(case, optimizer, 2)
        train(resumed, other, 2)
        for param, again in zip(case.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(param, again)


@EVERY
def test_entry_describes_itself(name: str) -> None:
    spec = OPTIMIZERS[name]
    assert spec.name == name
    assert spec.family
    assert spec.paper
    assert spec.summary.endswith(".")
    assert spec.geometry in GEOMETRIES
    assert len(spec.lr_grid) >= 3


@EVERY
def test_its_geometry_is_the_one_its_class_is_known_for(name: str) -> None:
    optimizer = classification().optimizer(Choice(name=name), 0.1)
    assert matched(optimizer) == OPTIMIZERS[name].geometry


@EVERY
def test_accepts_its_defaults_as_json(name: str) -> None:
    defaults, lr = OPTIMIZERS[name].defaults, OPTIMIZERS[name].lr_grid[0]
    given, plain = classification(), classification()
    train(given, given.optimizer(Choice(name=name, options=defaults), lr), 2)
    train(plain, plain.optimizer(Choice(name=name), lr), 2)
    for one, other in zip(given.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


@EVERY
def test_options_in_examples_follow_the_batch_size(name: str) -> None:
    defaults, lr = OPTIMIZERS[name].defaults, OPTIMIZERS[name].lr_grid[0]
    for option, target in SCALED_OPTIONS.items():
        choice = Choice(name=name, options={option: 1024})
        if option not in OPTIMIZERS[name].options_in_examples:
            with pytest.raises(ConfigError, match=f"{option} means nothing for it"):
                build_optimizer(choice, quadratic().model, lr, 64)
            continue
        value = 64 / (lr * 1024)
        if target == "betas":
            value = [defaults["betas"][0], 2 ** (-1 / 16), *defaults["betas"][2:]]
        scaled, plain = classification(), classification()
        train(scaled, scaled.optimizer(choice, lr, 64), 3)
        train(plain, plain.optimizer(Choice(name=name, options={target: value}), lr), 3)
        for one, other in zip(scaled.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(one, other)


BAD = {"betas": [0.9, 1.5], "momentum": 1.5, "weight_decay": -1.0, "eps": -1.0}


@EVERY
def test_bad_values_are_config_errors(name: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer '{name}' refuses its options"):
        vector(name, lr=-0.1)
    for option in BAD.keys() & OPTIMIZERS[name].defaults.keys():
        with pytest.raises(ConfigError, match=f"optimizer '{name}' refuses its options"):
            vector(name, **{option: BAD[option]})


@EVERY
def test_values_of_another_kind_than_the_default_are_config_errors(name: str) -> None:
    for option, default in OPTIMIZERS[name].defaults.items():
        # Any word counts as true, and a step would unpack decays.
        if isinstance(default, bool):
            wrong: list[Any] = ["no", 0, None]
        elif isinstance(default, int | float):
            wrong = ["0.1", True, [0.1]]
        elif isinstance(default, tuple):
            wrong = [[], default[:1], [*default, 0.5], {"a": 1}, ["0.9"] * len(default), 0.5]
        else:
            continue
        for value in wrong:
            with pytest.raises(ConfigError, match=f"optimizer '{name}' refuses its options: {option} must be"):
                vector(name, **{option: value})


@EVERY
def test_a_model_without_trainable_parameters_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="empty parameter list"):
        build_optimizer(Choice(name=name), Vector().requires_grad_(False), 0.1)


def steps_alike_where_compiled(name: str) -> None:
    (case, plain), (other, twin) = (
        (case, case.optimizer(Choice(name=name), 0.01)) for case in (classification(), classification())
    )
    torch._dynamo.reset()
    compiled = torch.compile(twin.step, backend="eager")
    for _ in range(3):
        train(case, plain, 1)
        for param, copied in zip(case.model.parameters(), other.model.parameters(), strict=True):
            assert param.grad is not None
            copied.grad = param.grad.clone()
        compiled()
    for param, copied in zip(case.model.parameters(), other.model.parameters(), strict=True):
        # a step that a compiler reads takes the path that looks at no values
        torch.testing.assert_close(param, copied, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "adamw", "lamb", "lars", "merit", "muon", "signsgd"])
def test_compiled_steps_of_our_own_are_those_that_are_not_compiled(name: str) -> None:
    assert type(classification().optimizer(Choice(name=name), 0.01)).__module__.startswith("cbs.")
    steps_alike_where_compiled(name)


@EVERY
def test_unknown_option_names_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        vector(name, no_such_option=1)
    message = str(caught.value)
    assert "no_such_option" in message
    assert all(option in message for option in OPTIMIZERS[name].defaults)
    assert "\n" not in message


def test_package_exports_exist() -> None:
    assert set(OPTIMIZERS.names()) >= {"adamw", "lamb", "merit", "muon", "sgd"}
    for export in cbs.optimizers.__all__:
        assert getattr(cbs.optimizers, export) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = cbs.optimizers.no_such_name
