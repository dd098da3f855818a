"""The largest attention logit: equal to the definition under every mask, and invisible to what it watches."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from cbs.errors import ConfigError
from extensions.layers.diagnostics import max_attention_logit as module
from extensions.layers.diagnostics.max_attention_logit import MaxAttentionLogit, largest_logit
from extensions.layers.tests import reference as twin

KINDS = ("none", "causal", "bool", "float", "padding", "square")


@st.composite
def calls(draw: st.DrawFn) -> dict[str, object]:
    """Arguments of an attention call, of every kind it takes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    examples, key_heads, shared = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    heads, queries, keys = key_heads * shared, draw(st.integers(1, 6)), draw(st.integers(1, 6))
    width, kind = draw(st.integers(1, 5)), draw(st.sampled_from(KINDS))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = None
    if kind in ("bool", "float", "padding", "square"):
        shape = {"padding": (examples, 1, 1, keys), "square": (queries, keys)}.get(
            kind, (draw(st.sampled_from([1, examples])), draw(st.sampled_from([1, heads])), queries, keys)
        )
        mask = random(*shape) > 0.3
        if kind == "float":
            hidden = draw(st.sampled_from([-math.inf, -1e4, torch.finfo(torch.float32).min]))
            mask = random(*shape).masked_fill(~mask, hidden)
    return {
        "query": random(examples, heads, queries, width),
        "key": random(examples, key_heads, keys, width),
        "attn_mask": mask,
        "is_causal": kind == "causal",
        "scale": draw(st.sampled_from([None, 1.0, 0.3, -2.0])),
        "enable_gqa": shared > 1,
    }


@settings(deadline=None, max_examples=60)
@given(call=calls(), most=st.sampled_from([1, 2, 3, 7, 30, 10**6]))
def test_equals_the_definition_in_blocks_of_any_size(call: dict[str, object], most: int) -> None:
    expected = twin.largest_logit(**{name: value for name, value in call.items() if name != "enable_gqa"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCKS", {"cpu": most})
        assert largest_logit(**call).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    single = {name: value.float() if name in ("query", "key") else value for name, value in call.items()}
    # float32 inputs are rounded to 1 part in 2^24 and summed over at most 5 products of a few units
    assert largest_logit(**single).item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@settings(deadline=None, max_examples=60)
@given(call=calls())
def test_is_the_largest_entry_the_attention_weighs(call: dict[str, object]) -> None:
    """The masks mean what they mean to torch: the pairs that count are those with a weight."""
    if call["scale"] is not None:
        call["scale"] = abs(call["scale"])  # with a negative one torch's causal kernel returns NaN
    query, key = call["query"], call["key"]
    value = torch.eye(key.shape[2], dtype=torch.float64).expand(*key.shape[:2], -1, -1)
    options = {name: call[name] for name in ("attn_mask", "is_causal", "scale", "enable_gqa")}
    if call["attn_mask"] is not None and call["attn_mask"].is_floating_point():
        # only what is masked, not the bias, which weighs but is not part of the logit
        options["attn_mask"] = call["attn_mask"] > module.MASKED
    weights = scaled_dot_product_attention(query, key, value, **options).nan_to_num(0.0)
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    logits = query @ keys.transpose(-2, -1) * (call["scale"] or 1 / math.sqrt(query.shape[-1]))
    seen = logits[weights > 0]
    expected = seen.max().item() if len(seen) else -math.inf
    assert largest_logit(**call).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_read_in_float32(dtype: torch.dtype) -> None:
    query, key = (torch.randn(2, 2, 9, 8).to(dtype) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        found = largest_logit(query, key)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(largest_logit(query.double(), key.double()).item(), rel=1e-6)


def test_a_logit_that_is_not_a_number_is_not_hidden() -> None:
    query = torch.zeros(1, 1, 4, 2)
    query[0, 0, 2, 1] = math.nan
    assert largest_logit(query, torch.ones(1, 1, 4, 2), is_causal=True).isnan()


class Attention(nn.Module):
    """Layers of attention over ``[examples, heads, positions, width]``, each with weights of its own."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(4, 12) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.maps:
            query, key, value = layer(x).split(4, -1)
            x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x

    def logits(self, x: Tensor) -> list[float]:
        """Largest logit of every layer, by the twin."""
        found = []
        for layer in self.maps:
            query, key, value = layer(x).split(4, -1)
            found.append(twin.largest_logit(query, key, is_causal=True))
            x = x + scaled_dot_product_attention(query, key, value, is_causal=True)
        return found


@pytest.fixture
def model() -> Attention:
    torch.manual_seed(0)
    return Attention()


def test_a_layer_is_a_call_in_the_order_of_the_forward_pass(model: Attention) -> None:
    x = torch.randn(3, 2, 5, 4)
    with MaxAttentionLogit() as logits:
        loss = model(x).square().mean()
    loss.backward()
    found = logits.read()
    assert found.tolist() == pytest.approx(model.logits(x), rel=1e-5)
    assert not found.requires_grad
    names = [f"max_attention_logit_layer_{layer}" for layer in (1, 2, 3)]
    with logits:
        model(x)
    assert {name: value.item() for name, value in logits.columns().items()} == dict(
        zip(names, found.tolist(), strict=True)
    )


def test_the_largest_of_all_micro_batches_since_the_last_reading(model: Attention) -> None:
    parts = torch.randn(3, 2, 2, 5, 4).unbind()
    logits = MaxAttentionLogit()
    for part in parts:
        with logits:
            model(part)
    each = torch.tensor([model.logits(part) for part in parts])
    assert each.argmax(0).unique().numel() > 1  # else the last part alone would do
    assert logits.read().tolist() == pytest.approx(each.amax(0).tolist(), rel=1e-5)
    with logits:
        model(parts[0])
    assert logits.read().tolist() == pytest.approx(each[0].tolist(), rel=1e-5)


def _never_called() -> None:
    with MaxAttentionLogit():
        nn.Linear(2, 2)(torch.randn(3, 2))


def _nothing_read() -> None:
    MaxAttentionLogit().read()


def _compiled() -> None:
    with MaxAttentionLogit():
        torch.compile(Attention(1), backend="eager")(torch.randn(1, 1, 3, 4))


def _compiled_before() -> None:
    model, x = torch.compile(Attention(1), backend="eager"), torch.randn(1, 1, 3, 4)
    model(x)
    with MaxAttentionLogit():
        model(x)


def _other_number_of_layers() -> None:
    logits = MaxAttentionLogit()
    for layers in (1, 2):
        with logits:
            Attention(layers)(torch.randn(1, 1, 3, 4))


def _nested() -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(2, 5, 4)], layout=torch.jagged)
    largest_logit(nested, nested)


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (_never_called, "never calls torch.nn.functional.scaled_dot_product_attention"),
        (_nothing_read, "enter it around the forward pass"),
        (_compiled, "without torch.compile"),
        (_compiled_before, "without torch.compile"),
        (_other_number_of_layers, "2 calls of scaled_dot_product_attention in this forward pass, 1 in the one before"),
        (_nested, "nested"),
    ],
)
def test_misuse_is_one_clear_line(misuse: Callable[[], None], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        misuse()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_block_in_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(module.__file__).parents[3] / "docs" / "max-attention-logit.md"
    source = page.read_text().split("```py\n")[1].split("```")[0]
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    readers = {"model": model, "batches": torch.randn(3, 8, 16, 32), "loss_of": lambda out: out.square().mean()}
    exec(compile(source, page.name, "exec"), readers)
    assert len(capsys.readouterr().out.splitlines()) == 3
