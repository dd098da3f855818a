import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.lamb import LAMB
from cbs.optimizers.problem import ProblemOptimizer
from cbs.optimizers.widths import POWERS, Width, scale_for_width
from cbs.trial.config import Choice
from cbs.workloads.text import text
from cbs.workloads.text_parts.gpt import GPT, BaseModel, GPTShape
from tests.kinds import kinds

SHAPE = GPTShape(width=16, layers=1, heads=2, context=6)
BASE = BaseModel(width=4, head_size=8)
HIDDEN = {"attention_qkv", "attention_out", "mlp_in", "mlp_out"}


def gpt(base: BaseModel | None = BASE) -> GPT:
    torch.manual_seed(0)
    return GPT(SHAPE, 11, base)


def lrs(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, float]:
    of = {id(param): group["lr"] for group in optimizer.param_groups for param in group["params"]}
    return {name: of[id(param)] for name, param in model.named_parameters()}


def expected(model: nn.Module, lr: float, *, hidden: float, other: float) -> dict[str, float]:
    return {name: lr * (hidden if name.split(".")[-2] in HIDDEN else other) for name, _ in model.named_parameters()}


def train(model: GPT, optimizer: torch.optim.Optimizer, steps: int, *, start: int = 0) -> None:
    for step in range(start, start + steps):
        ids = torch.randint(11, (4, 7), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        logits = model(ids[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()


# At four times the base width.
FACTORS = {"adam": (1 / 4, 1.0), "sgd": (1.0, 4.0), "spectral": (1 / 2, 1.0), "none": (1.0, 1.0)}


@pytest.mark.parametrize("rule", POWERS)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, LAMB])
def test_each_parameter_gets_its_factor(kind: type[torch.optim.Optimizer], rule: str) -> None:
    model, (hidden, other) = gpt(), FACTORS[rule]
    optimizer = kind(model.parameters(), lr=0.5, weight_decay=0.125)
    scale_for_width(optimizer, model, rule)
    assert lrs(optimizer, model) == expected(model, 0.5, hidden=hidden, other=other)
    assert all(group["weight_decay"] == 0.125 for group in optimizer.param_groups)
    assert len(optimizer.param_groups) == len({hidden, other})
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_every_optimizer_of_the_registry_takes_its_factors(name: str) -> None:
    model, (hidden, other) = gpt(), FACTORS[OPTIMIZERS[name].width_rule]
    optimizer = build_optimizer(Choice(name=name), model, 0.03125)
    assert lrs(optimizer, model) == expected(model, 0.03125, hidden=hidden, other=other)
    if isinstance(optimizer, ProblemOptimizer):
        return
    train(model, optimizer, 2)
    assert all(param.isfinite().all() for param in model.parameters())


class Wrapper(torch.optim.Optimizer):
    """Shares the list of groups itself, as look-ahead and schedule-free wrappers do."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups


def test_a_wrapper_is_scaled_once() -> None:
    model = gpt()
    optimizer = Wrapper(torch.optim.AdamW(model.parameters(), lr=0.5))
    scale_for_width(optimizer, model, "adam")
    assert lrs(optimizer, model) == lrs(optimizer.optimizer, model) == expected(model, 0.5, hidden=0.25, other=1.0)
    held = [id(param) for group in optimizer.param_groups for param in group["params"]]
    assert sorted(held) == sorted(id(param) for param in model.parameters())


def test_groups_of_the_user_stay_apart() -> None:
    model = gpt()
    block, rest = list(model.blocks.parameters()), [model.tokens.weight, model.positions.weight, model.norm.weight]
    optimizer = torch.optim.AdamW([{"params": block, "lr": 0.5, "betas": (0.5, 0.5)}, {"params": rest}], lr=2.0)
    scale_for_width(optimizer, model, "adam")
    by_lr = {group["lr"]: (group["betas"], len(group["params"])) for group in optimizer.param_groups}
    assert by_lr == {0.5: ((0.5, 0.5), 2), 0.125: ((0.5, 0.5), 4), 2.0: ((0.9, 0.999), 3)}


def test_bad_rules_names_and_widths_are_config_errors() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    with pytest.raises(ConfigError, match="unknown width rule 'lion': known rules are adam, sgd"):
        scale_for_width(optimizer, model, "lion")
    object.__setattr__(model, "widths", lambda: {"nowhere": Width(kind="input", ratio=2)})
    with pytest.raises(ConfigError, match="'nowhere'"):
        scale_for_width(optimizer, model, "adam")
    with pytest.raises(ConfigError, match="input, hidden, output or narrow"):
        Width(kind="inner", ratio=2)  # type: ignore[arg-type]
    for ratio in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="above 0"):
            Width(kind="hidden", ratio=ratio)


class Perceptron(nn.Module):
    """Three layers W = a w with w of standard deviation ``stds`` for each."""

    def __init__(self, width: int, scales: list[float], stds: list[float]) -> None:
        super().__init__()
        torch.manual_seed(0)
        shapes = [(width, 3), (width, width), (2, width)]
        self.w = nn.ParameterList(std * torch.randn(shape).double() for shape, std in zip(shapes, stds, strict=True))
        self.scales, self.width = scales, width

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = (scale * w for scale, w in zip(self.scales, self.w, strict=True))
        return torch.tanh(torch.tanh(x @ first.T) @ second.T) @ third.T

    def widths(self) -> Mapping[str, Width]:
        kinds = ("input", "hidden", "output")
        return {f"w.{index}": Width(kind=kind, ratio=self.width) for index, kind in enumerate(kinds)}


def test_equals_the_table_of_essential_ai_where_the_head_is_not_tied() -> None:
    """arXiv 2505.02222: W = a w, w of variance b, learning rate c * lr; for base width 1 it is the same model."""
    n, lr = 24, 0.02
    a, b, c = [n**0.5, 1.0, n**-0.5], [1 / n, 1 / n, 1 / n], [n**-0.5, 1 / n, n**-0.5]
    theirs = Perceptron(n, a, [variance**0.5 for variance in b])
    ours = Perceptron(n, [1.0, 1.0, 1 / n], [1.0, n**-0.5, 1.0])
    one = torch.optim.Adam([{"params": [w], "lr": lr * factor} for w, factor in zip(theirs.w, c, strict=True)], eps=0.0)
    two = torch.optim.Adam(ours.parameters(), lr=lr, eps=0.0)
    scale_for_width(two, ours, "adam")
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(1)).double()
    y = torch.stack([x.sum(1), x.prod(1)], 1)
    start = ours(x).detach()
    for _ in range(10):
        for model, optimizer in ((theirs, one), (ours, two)):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    # Float64 rounding only, in outputs of order one, though Adam divides where gradients are small.
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-9)
    assert (ours(x) - start).abs().mean() > 0.05


WIDTHS = (32, 64, 256)


def changes(rule: str, lr: float, parametrization: str, width: int) -> tuple[float, float]:
    """Root mean square change, after four steps, of the logits and of the residual stream after the last block."""
    workload = text(width=width, context=16, parametrization=parametrization, validation_sequences=8)
    with seeding.seeded(0, "init"):
        model = workload.build_model()
    assert isinstance(model, GPT)
    seen: list[Tensor] = []
    model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    stream = workload.training_stream(seeding.generator(0, "data"))
    probe = stream.next(16)[:, :-1]
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer = kinds[rule](model.parameters(), lr=lr)
    scale_for_width(optimizer, model, rule)
    before = model(probe).detach(), seen[-1]
    for _ in range(4):
        optimizer.zero_grad()
        workload.example_losses(model, stream.next(8)).mean().backward()
        optimizer.step()
    after = model(probe).detach(), seen[-1]
    logits, residual = ((new - old).square().mean().sqrt().item() for new, old in zip(after, before, strict=True))
    return logits, residual


@pytest.mark.parametrize(("rule", "lr", "growth"), kinds([("adam", 4e-3, (4.0, 4.0))], [("sgd", 0.1, (3.0, 1.3))]))
def test_coordinate_check(rule: str, lr: float, growth: tuple[float, float]) -> None:
    """Changes of activations after a few steps do not depend on the width in muP and grow with it otherwise.

    Over a factor 8 in width a wrong power of 1/2 shows as 2.8; 1.5 leaves room for the seed. In the standard
    parametrization logits grow like the width while steps are small, the residual stream under Adam alone.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {
        parametrization: torch.tensor([changes(rule, lr, parametrization, width) for width in WIDTHS])
        for parametrization in ("standard", "mup")
    }
    torch.set_num_threads(threads)
    assert torch.equal(found["standard"][0], found["mup"][0])
    assert (found["mup"].amax(0) / found["mup"].amin(0)).max() < 1.5
    assert (found["standard"][-1] / found["standard"][0] > torch.tensor(growth)).all()
