"""Masked language modelling: which tokens are hidden, what is shown in their place, and the change of context."""

import pytest
import torch
from torch import Tensor

from cbs.compute import seeding
from cbs.errors import CbsError, ConfigError, DataError, UnknownNameError
from cbs.training.run import run_trial
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.target import Target
from cbs.workloads.text_parts.corpus import embedded_corpus
from cbs.workloads.text_parts.gpt import GPTShape
from extensions.papers.workloads.masked_text import BERT, BERT_SIZES, MaskedTextWorkload, masked_text
from tests.workloads.text_parts.test_llama import count, ids, larger


def draw(workload: MaskedTextWorkload, examples: int) -> tuple[Tensor, Tensor, Tensor]:
    return workload.training_stream(seeding.generator(0, "data")).next(examples)


def restored(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    ids, places, targets = batch
    return ids.scatter(1, places, targets)


def test_hidden_tokens_are_those_of_the_text() -> None:
    batch = draw(masked_text(), 500)
    ids, places, targets = batch
    assert ids.shape == (500, 32)
    assert places.shape == targets.shape == (500, 5)  # 15 % of 32 is 4.8
    assert all(len(row.unique()) == 5 for row in places)
    text = bytes(embedded_corpus().training)
    for row in restored(batch)[:50]:
        assert bytes(row.tolist()) in text
    shown = ids.gather(1, places)
    share = [(shown == 128).float().mean(), ((shown != 128) & (shown != targets)).float().mean()]
    # 2500 draws: a standard deviation of .008; a random token is the right one now and then.
    assert share[0] == pytest.approx(0.8, abs=0.04)
    assert share[1] == pytest.approx(0.1, abs=0.03)
    assert places.flatten().bincount(minlength=32).float() == pytest.approx(torch.full((32,), 78.1), abs=44)
    others = shown[(shown != 128) & (shown != targets)]
    assert others.float().mean() == pytest.approx(63.5, abs=5 * 37 / len(others) ** 0.5)


def test_losses_are_means_over_hidden_tokens() -> None:
    workload = masked_text(later_context=48, switch=2)
    torch.manual_seed(0)
    model, batch = workload.build_model().double(), draw(workload, 4)
    losses = workload.example_losses(model, batch)
    for row in range(4):
        count, length = (5, 32) if row < 2 else (7, 48)
        ids, places, targets = (part[row : row + 1] for part in batch)
        logits = model(ids[:, :length], places[:, :count])[0]
        by_hand = -logits.log_softmax(1)[torch.arange(count), targets[0, :count]].mean()
        torch.testing.assert_close(losses[row], by_hand)


def test_the_context_grows_after_so_many_examples() -> None:
    workload = masked_text(later_context=48, switch=100)
    stream = workload.training_stream(seeding.generator(0, "data"))
    shapes = [stream.next(size)[0] for size in (60, 30, 20, 5)]
    assert [ids.shape[1] for ids in shapes] == [32, 32, 48, 48]
    assert (shapes[2][:10, 32:] == -1).all()
    assert (shapes[2][:10, :32] >= 0).all()
    assert (shapes[2][10:] >= 0).all()
    skipped = workload.training_stream(seeding.generator(0, "data"))
    skipped.skip(105)
    last = skipped.next(5)
    assert torch.equal(last[0], shapes[2][15:])
    assert workload.tokens_per_example is None
    shrinking = masked_text(context=48, later_context=16, switch=1)
    assert [part.shape[1] for part in draw(shrinking, 3)] == [48, 7, 7]


def test_a_trial_crosses_the_switch_and_goes_on() -> None:
    config = TrialConfig(
        workload=Choice(
            name="masked_text", options={"later_context": 40, "switch": 100, "validation_sequences": 32, "layers": 1}
        ),
        optimizer=Choice(name="adamw"),
        lr=4e-3,
        batch_size=8,
        seed=0,
        target=Target(metric="validation_loss", value=3.6),
        max_steps=60,
        device="cpu",
    )
    result = run_trial(config)
    assert result.steps_to_target < 60


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (UnknownNameError, {"size": "bert"}, "known sizes are 30k, 200k, 3m, bert-base, bert-large"),
        (UnknownNameError, {"init": "nanogpt"}, "known are scaled, bert"),
        (ConfigError, {"later_context": 64}, "later_context and switch of workload 'masked_text' belong together"),
        (ConfigError, {"switch": 64}, "belong together; give both"),
        (ConfigError, {"later_context": 32, "switch": 5}, "equals the context 32"),
        (ConfigError, {"mask_id": -1}, "mask_id of workload 'masked_text'"),
        (ConfigError, {"width": 40}, "not a multiple of 16, the head size of '30k'"),
        (ConfigError, {"tokenizer": "a.json"}, "needs data=PATH"),
        (DataError, {"context": 10**6}, "tokens for training"),
    ],
)
def test_bad_options(kind: type[CbsError], options: dict[str, object], expected: str) -> None:
    with pytest.raises(kind) as caught:
        masked_text(**options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


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
