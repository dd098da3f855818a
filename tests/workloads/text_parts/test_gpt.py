import math

import pytest
import torch
from torch import Tensor

from cbs.optimizers.widths import Width
from cbs.workloads.text_parts.gpt import GPT, SIZES, BaseModel, GPTShape

TINY = GPTShape(width=16, layers=2, heads=4, context=12)


def build(shape: GPTShape = SIZES["30k"], vocab_size: int = 128, seed: int = 0, base: BaseModel | None = None) -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT(shape, vocab_size, base)


def random_ids(sequences: int, length: int, vocab_size: int = 128) -> Tensor:
    return torch.randint(vocab_size, (sequences, length), generator=torch.Generator().manual_seed(1))


def count(model: GPT) -> int:
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
    assert count(model) == expected
    assert SIZES[size].parameters(50_257) == expected


@pytest.mark.parametrize("size", ["30k", "200k", "3m"])
def test_small_sizes_are_named_after_their_parameter_count(size: str) -> None:
    named = {"30k": 30e3, "200k": 200e3, "3m": 3e6}[size]
    assert SIZES[size].parameters(128) == pytest.approx(named, rel=0.1)
    assert SIZES[size].parameters(128) == count(build(SIZES[size]))


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
