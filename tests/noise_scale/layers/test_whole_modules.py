"""Modules in which a function cannot run group by group run so as a whole, or are left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact


class Experts(nn.Module):
    """Every row goes to one of two experts, whose rows are multiplied together."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(2, 5, 5))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        out = torch.zeros_like(rows)
        for expert, chosen in enumerate((rows[:, 0] > 0, rows[:, 0] <= 0)):
            out[chosen] = (rows[chosen] @ self.weights[expert]).tanh()
        return out.view_as(x)


@pytest.mark.parametrize("source", ["split", "per_example"])
@pytest.mark.parametrize("examples", [4, 5, 9])
def test_rows_that_are_sent_to_experts_inside_a_module(source: str, examples: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(examples, 3, 5).double()
    model = nn.Sequential(nn.Linear(5, 5), Experts(), nn.Linear(5, 2)).double()
    assert_exact(model, lambda model: model(x).square().sum((1, 2)), source=source, rtol=1e-10)


class Iterated(nn.Module):
    """Changes a buffer whenever it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5))
        self.register_buffer("direction", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.direction.copy_(self.weight.detach() @ self.direction / (self.weight.detach() @ self.direction).norm())
        return x[x[:, 0] > -9] @ self.weight


def test_a_module_that_changes_its_buffers_is_left_alone() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 5), Iterated()), torch.randn(4, 5)
    plain = nn.Sequential(nn.Linear(5, 5), Iterated())
    plain.load_state_dict(model.state_dict())
    meter = NoiseScaleMeter(model, source="split")
    for net in (model, plain):
        net(x).square().sum().backward()
    torch.testing.assert_close(model[1].direction, plain[1].direction)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    meter.detach()


class Repeating(nn.Module):
    """Gives every example, or every half of one, its row of a table by itself."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.table = nn.Linear(3, 5)
        self.head = nn.Linear(5, 1)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        shared = self.table(torch.ones(1, 3)).repeat(self.times * len(x), 1)
        return self.head(x.repeat_interleave(self.times, 0) * shared)


def test_rows_that_a_model_repeats_by_itself() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 5)
    assert_exact(Repeating(1), lambda model: model(x).square().sum(1), source="split", rtol=1e-5)
    model, plain = Repeating(2), Repeating(2)
    plain.load_state_dict(model.state_dict())
    with Probe(model, source="split") as probe:
        for net in (model, plain):
            net(x).square().mean().backward()
        torch.testing.assert_close(model.table.weight.grad, plain.table.weight.grad)
        with pytest.raises(ConfigError, match=r"'table'.*cannot be used group by group.*'accumulation'"):
            probe.step()


class Mixer(nn.Module):
    """State-space mixer that calls a projection in one place and reads its weight in another."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.randn(5))
        self.projection = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.exp(-self.A_log.exp())
        return (self.projection(x) - self.projection.bias).cumsum(1) * decay + x @ self.projection.weight


@pytest.mark.parametrize("source", ["split", "per_example"])
def test_a_state_space_mixer_reads_parameters_of_what_it_calls(source: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3, 5).double()
    model = nn.Sequential(nn.Linear(5, 5), Mixer(), nn.Linear(5, 2)).double()
    assert_exact(model, lambda model: model(x).sin().sum((1, 2)), source=source, rtol=1e-10)


@pytest.mark.parametrize("name", ["mamba2", "jamba"])
def test_mixers_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    common = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 23, "pad_token_id": 0}
    if name == "mamba2":
        config = transformers.Mamba2Config(**common, state_size=8, num_heads=4, head_dim=8, n_groups=1, chunk_size=4)
        model = transformers.Mamba2ForCausalLM(config).double()
    else:
        shape = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16, "num_experts": 1}
        mixer = {"use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4, "num_experts_per_tok": 1}
        layers = {"attn_layer_period": 2, "attn_layer_offset": 1}
        model = transformers.JambaForCausalLM(transformers.JambaConfig(**common, **shape, **mixer, **layers)).double()
    ids = torch.randint(23, (4, 6))
    # The scan is in float32 inside.
    assert_exact(model, lambda model: model(ids, use_cache=False).logits.sin().mean((1, 2)), source="split", rtol=1e-5)
