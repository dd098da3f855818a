"""BERT against the same model of transformers, weights copied; counts against those published."""

import pytest
import torch

from cbs.workloads.text_parts.gpt import GPTShape
from extensions.papers.workloads.masked_text import BERT, BERT_SIZES
from tests.workloads.text_parts.test_llama import count, ids, larger


@pytest.mark.parametrize(("size", "expected"), [("bert-base", 109_512_762), ("bert-large", 335_172_410)])
def test_bert_sizes_without_allocating_them(size: str, expected: int) -> None:
    with torch.device("meta"):
        assert count(BERT(BERT_SIZES[size], 30_522)) == expected


@pytest.mark.parametrize("size", ["bert-base", "bert-large"])
def test_bert_has_the_parameters_of_the_published_one_but_for_segments(size: str) -> None:
    transformers = pytest.importorskip("transformers")
    shape = BERT_SIZES[size]
    config = transformers.BertConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
    )
    with torch.device("meta"):
        twin = transformers.BertForMaskedLM(config)
        assert count(twin) - 2 * shape.width == count(BERT(shape, 30_522))


@pytest.mark.parametrize("padded", [False, True])
def test_bert_is_that_of_transformers(padded: bool) -> None:
    transformers = pytest.importorskip("transformers")
    shape = GPTShape(width=48, layers=2, heads=6, context=16)
    model = larger(BERT(shape, 50))
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        intermediate_size=192,
        max_position_embeddings=16,
    )
    twin = transformers.BertForMaskedLM(config).double().eval()
    head = "cls.predictions"
    pairs = {"bert.embeddings.word_embeddings": model.tokens, "bert.embeddings.position_embeddings": model.positions}
    pairs |= {"bert.embeddings.LayerNorm": model.norm, f"{head}.transform.dense": model.transform}
    pairs |= {f"{head}.transform.LayerNorm": model.transform_norm, f"{head}.decoder": model.head}
    names = {"attention_out": "attention.output.dense", "attention_norm": "attention.output.LayerNorm"}
    names |= {"mlp_in": "intermediate.dense", "mlp_out": "output.dense", "mlp_norm": "output.LayerNorm"}
    state = {"bert.embeddings.token_type_embeddings.weight": torch.zeros(2, 48), f"{head}.bias": model.head.bias}
    for place, block in enumerate(model.blocks):
        start = f"bert.encoder.layer.{place}"
        pairs |= {f"{start}.{theirs}": block.get_submodule(ours) for ours, theirs in names.items()}
        for index, part in enumerate(("query", "key", "value")):
            rows = slice(48 * index, 48 * (index + 1))
            state[f"{start}.attention.self.{part}.weight"] = block.attention_qkv.weight[rows]
            state[f"{start}.attention.self.{part}.bias"] = block.attention_qkv.bias[rows]
    for name, module in pairs.items():
        state |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
    missing, unexpected = twin.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("position_ids" in name for name in missing)
    tokens, places = ids(), torch.tensor([[0, 5], [3, 1], [9, 4]])
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, 10:] = 0
    with torch.no_grad():
        logits = twin(tokens, attention_mask=mask).logits
        ours = model(tokens.masked_fill(mask == 0, -1), places)
    torch.testing.assert_close(ours, logits.gather(1, places[..., None].expand(-1, -1, 50)))
