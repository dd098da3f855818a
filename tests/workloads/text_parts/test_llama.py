"""Llama and GPT-2 against the same models of transformers, weights copied; counts against those published."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers.widths import Width
from cbs.workloads.text_parts.gpt import GPT, SIZES, BaseModel, GPTShape
from cbs.workloads.text_parts.llama import LLAMA_SIZES, Llama, LlamaShape

GROUPED = LlamaShape(width=48, layers=2, heads=6, context=16, kv_heads=2)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def ids(vocab_size: int = 50) -> Tensor:
    return torch.randint(vocab_size, (3, 16), generator=torch.Generator().manual_seed(1))


def larger(model: nn.Module) -> nn.Module:
    """Weights under which attention is not uniform and a norm's gain not 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.double()


# 2 V d + L (4 d^2 + 3 d h + 2 d) + d with V = 32,000: 134.1 million is what Zhao et al. call 130m.
@pytest.mark.parametrize(
    ("size", "expected"),
    [("llama-60m", 58_073_600), ("llama-130m", 134_105_856), ("llama-350m", 367_969_280), ("llama-1b", 1_339_082_752)],
)
def test_llama_sizes_without_allocating_them(size: str, expected: int) -> None:
    with torch.device("meta"):
        assert count(Llama(LLAMA_SIZES[size], 32_000)) == expected
    assert LLAMA_SIZES[size].parameters(32_000) == expected


@pytest.mark.parametrize("shape", [GROUPED, dataclasses.replace(GROUPED, kv_heads=None, tied=True)])
def test_llama_is_that_of_transformers(shape: LlamaShape) -> None:
    transformers = pytest.importorskip("transformers")
    model = larger(Llama(shape, 50))
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        max_position_embeddings=16,
        rms_norm_eps=1e-6,
        tie_word_embeddings=shape.tied,
    )
    twin = transformers.LlamaForCausalLM(config).double()
    names = {
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "attention_out": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "mlp_in": "mlp.up_proj",
        "mlp_out": "mlp.down_proj",
    }
    state = {"model.embed_tokens.weight": model.tokens.weight, "model.norm.weight": model.norm.weight}
    state["lm_head.weight"] = model.head.weight
    for place, block in enumerate(model.blocks):
        for ours, theirs in names.items():
            state[f"model.layers.{place}.{theirs}.weight"] = block.get_submodule(ours).weight
    twin.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(model(ids()), twin(ids()).logits, rtol=1e-5, atol=1e-5)  # angles in float32


def test_gpt2_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    shape = GPTShape(width=48, layers=2, heads=6, context=16, biases=True)
    model = larger(GPT(shape, 50))
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=48, n_layer=2, n_head=6, activation_function="gelu"
    )
    twin = transformers.GPT2LMHeadModel(config).double().eval()
    state = {
        "transformer.wte.weight": model.tokens.weight,
        "lm_head.weight": model.tokens.weight,
        "transformer.wpe.weight": model.positions.weight,
        "transformer.ln_f.weight": model.norm.weight,
        "transformer.ln_f.bias": model.norm.bias,
    }
    names = {
        "attention_norm": "ln_1",
        "attention_qkv": "attn.c_attn",
        "attention_out": "attn.c_proj",
        "mlp_norm": "ln_2",
    }
    names |= {"mlp_in": "mlp.c_fc", "mlp_out": "mlp.c_proj"}
    for place, block in enumerate(model.blocks):
        for ours, theirs in names.items():
            layer = block.get_submodule(ours)
            turned = layer.weight.T if isinstance(layer, nn.Linear) else layer.weight
            state |= {
                f"transformer.h.{place}.{theirs}.weight": turned,
                f"transformer.h.{place}.{theirs}.bias": layer.bias,
            }
    twin.load_state_dict(state, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(model(ids()), twin(ids()).logits)


def test_llama_starts_from_the_stated_standard_deviations() -> None:
    shape = LlamaShape(width=128, layers=4, heads=4, context=8)
    for fixed in (False, True):
        torch.manual_seed(0)
        model = Llama(shape, 400, fixed_std=fixed)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                assert torch.equal(parameter, torch.ones_like(parameter))
                continue
            inside = 0.02 if fixed or name.startswith(("tokens", "head")) else parameter.shape[1] ** -0.5
            expected = inside / 8**0.5 if "_out" in name and not fixed else inside
            assert parameter.std().item() == pytest.approx(expected, rel=5 / (2 * parameter.numel()) ** 0.5), name


def test_a_llama_knows_its_widths() -> None:
    model = Llama(GROUPED, 50, BaseModel(width=12, head_size=8))
    widths = model.widths()
    assert widths["head.weight"] == Width(kind="output", ratio=4.0)
    assert widths["blocks.0.key.weight"].kind == "hidden"
    assert {widths[name].kind for name in ("tokens.weight", "norm.weight", "blocks.1.mlp_norm.weight")} == {"input"}
    plain = Llama(GROUPED, 50)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(4 * model(ids()), plain(ids()))


TINY = GPTShape(width=16, layers=2, heads=4, context=12)


def build(shape: GPTShape = SIZES["30k"], vocab_size: int = 128, seed: int = 0, base: BaseModel | None = None) -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT(shape, vocab_size, base)


def random_ids(sequences: int, length: int, vocab_size: int = 128) -> Tensor:
    return torch.randint(vocab_size, (sequences, length), generator=torch.Generator().manual_seed(1))


def entries(model: GPT) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Radford et al. 2019 as released, with V = 50257 and T = 1024: biases, head tied to the token embedding.
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_gpt2_sizes_without_allocating_them(size: str, expected: int) -> None:
    with torch.device("meta"):
        model = GPT(SIZES[size], 50_257)
    assert entries(model) == expected
    assert SIZES[size].parameters(50_257) == expected


@pytest.mark.parametrize("size", ["30k", "200k", "3m"])
def test_small_sizes_are_named_after_their_parameter_count(size: str) -> None:
    named = {"30k": 30e3, "200k": 200e3, "3m": 3e6}[size]
    assert SIZES[size].parameters(128) == pytest.approx(named, rel=0.1)
    assert SIZES[size].parameters(128) == entries(build(SIZES[size]))


@pytest.mark.parametrize("size", SIZES)
def test_heads_divide_the_width(size: str) -> None:
    assert SIZES[size].width % SIZES[size].heads == 0


def test_initial_standard_deviations() -> None:
    model = build(SIZES["200k"])
    residual = 1 / math.sqrt(2 * 4)
    expected = {"tokens": 0.02, "positions": 0.02}
    expected |= {"attention_qkv": 64**-0.5, "mlp_in": 64**-0.5}
    expected |= {"attention_out": 64**-0.5 * residual, "mlp_out": 256**-0.5 * residual}
    for name, parameter in model.named_parameters():
        module = name.split(".")[-2]
        if module.endswith("norm"):
            assert torch.equal(parameter, torch.ones_like(parameter))
            continue
        # The relative standard error of a standard deviation from n normals is 1 / sqrt(2 n); five of them.
        tolerance = 5 / math.sqrt(2 * parameter.numel())
        assert parameter.std(correction=0).item() == pytest.approx(expected[module], rel=tolerance), name
        assert abs(parameter.mean().item()) < 5 * expected[module] / math.sqrt(parameter.numel()), name


def test_mup_starts_from_the_same_weights_and_divides_the_logits() -> None:
    wide = GPTShape(width=64, layers=2, heads=4, context=32)
    standard, mup, ids = build(wide), build(wide, base=BaseModel(width=16, head_size=16)), random_ids(2, 32)
    for one, other in zip(standard.parameters(), mup.parameters(), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        torch.testing.assert_close(mup(ids), standard(ids) / 4, rtol=1e-5, atol=1e-6)


def test_widths_name_every_parameter_and_its_kind() -> None:
    widths = build(TINY, 20, base=BaseModel(width=4, head_size=4)).widths()
    names = [name for name, _ in build(TINY, 20).named_parameters()]
    assert list(widths) == names
    kinds = {"tokens": "output", "positions": "input", "norm": "input", "attention_norm": "input", "mlp_norm": "input"}
    for name in names:
        assert widths[name] == Width(kind=kinds.get(name.split(".")[-2], "hidden"), ratio=4.0), name  # type: ignore[arg-type]
    assert {width.ratio for width in build(TINY, 20).widths().values()} == {1.0}
