"""Masked language modelling with the encoder of BERT: tokens are masked anew whenever a sequence is drawn, and the
context may grow once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, pad, scaled_dot_product_attention

from cbs.errors import ConfigError, UnknownNameError
from cbs.registry.choices import spread
from cbs.registry.values import all_whole, whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import FixedSet, PredictiveWorkload, cross_entropy_sample
from cbs.workloads.streams import DrawnExamples
from cbs.workloads.text_parts.corpus import Corpus
from cbs.workloads.text_parts.gpt import EMBEDDING_STD, GPTShape
from cbs.workloads.text_parts.options import CorpusOptions, ShapeOptions
from cbs.workloads.text_parts.tokens import Windows, windows_of

INITS = ("scaled", "bert")
MASK_SEED = 2**31 - 1  # Seed of the masks of the validation set


class MaskedTextWorkload(PredictiveWorkload):
    """Cross-entropy of hidden tokens given those around them.

    An example is a window of ``context`` tokens of which 15 % are hidden, at random positions drawn anew each time; its
    loss is the mean over these, in nats. With two contexts, the first ``switch`` examples have the first one and all
    others the second; a batch with both is padded. The metric is the mean loss at the last context; the loss at the
    first one is stored as ``validation_loss_N`` with N tokens.

    Args:
        shape: shape of the model; its context is the longest.
        corpus: the data.
        contexts: tokens of an example, one number or two.
        switch: number of examples before the second context.
        mask_id: id of the mask; ``None`` for a new id beyond the vocabulary.
        published_init: see :class:`~extensions.papers.workloads.masked_text.BERT`.
        validation_sequences: sequences in the validation set of every context.

    Raises:
        DataError: if a part of the corpus has too few windows.
    """

    metric = "validation_loss"
    direction: Direction = "below"
    example_unit = "sequence"

    def __init__(
        self,
        shape: GPTShape,
        corpus: Corpus,
        contexts: tuple[int, ...],
        switch: int = 0,
        *,
        mask_id: int | None = None,
        published_init: bool = False,
        validation_sequences: int = 512,
    ) -> None:
        self.shape = shape
        self.corpus = corpus
        self.contexts = contexts
        self.switch = switch
        self.mask_id = corpus.vocab_size if mask_id is None else mask_id
        self.vocab_size = max(corpus.vocab_size, self.mask_id + 1)
        self.published_init = published_init
        self.metric_unit = f"nats/{corpus.unit}"
        self.default_target = corpus.first_target
        self.tokens_per_example = contexts[0] if len(contexts) == 1 else None
        self.data_hash = corpus.data_hash
        self.validation_examples = validation_sequences * len(contexts)
        parts = [windows_of(corpus, context - 1, validation_sequences) for context in contexts]
        training = [windows for windows, _ in parts]
        self._windows = MaskedWindows(training, contexts, switch, corpus.vocab_size, self.mask_id)
        self._validation = []
        for context, (_, ids) in zip(contexts, parts, strict=True):
            uniform = torch.rand(validation_sequences, context, 2, generator=torch.Generator().manual_seed(MASK_SEED))
            self._validation.append(FixedSet(self._windows.hide(ids, uniform), chunk=128))

    def build_model(self) -> nn.Module:
        """Return a :class:`~extensions.papers.workloads.masked_text.BERT` drawn from torch's global random state."""
        return BERT(self.shape, self.vocab_size, self.published_init)

    def training_stream(self, generator: torch.Generator) -> DrawnExamples:
        """Return a stream of random windows with random masks."""
        return self._windows.stream(generator)

    def outputs(self, model: nn.Module, batch: MaskedTokens) -> Tensor:
        """Return logits of the hidden tokens, shape ``[sequences, hidden, vocabulary]``."""
        return model(batch[0], batch[1])

    def output_losses(self, outputs: Tensor, batch: MaskedTokens) -> Tensor:
        """Return the mean cross-entropy of the hidden tokens of every sequence, in nats, shape ``[sequences]``."""
        losses = cross_entropy(outputs.flatten(0, 1), batch[2].flatten(), reduction="none").view_as(batch[2])
        return losses.sum(1) / (batch[2] >= 0).sum(1)

    def curvature_sample(self, outputs: Tensor, batch: MaskedTokens, generator: torch.Generator) -> Tensor:
        """Return gradients of the loss at tokens drawn from the model, over the root of the number of hidden tokens."""
        real = (batch[2] >= 0).to(outputs)
        return cross_entropy_sample(outputs, generator) * (real / real.sum(1, keepdim=True).sqrt())[..., None]

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Return the mean loss over the validation set of every context, in nats per hidden token."""
        device = next(model.parameters()).device

        def losses(batch: tuple[Tensor, ...]) -> Tensor:
            return self.example_losses(model, (batch[0], batch[1], batch[2]))[:, None]

        *first, (last,) = [part.means(losses, device) for part in self._validation]
        return {"validation_loss": last} | {f"validation_loss_{self.contexts[0]}": value for (value,) in first}


@WORKLOADS.register("masked_text")
@spread(ShapeOptions, "changes")
@spread(CorpusOptions, "source")
def masked_text(
    *,
    size: str = "30k",
    changes: ShapeOptions,
    later_context: int | None = None,
    switch: int | None = None,
    init: str = "scaled",
    source: CorpusOptions,
    mask_id: int | None = None,
    validation_sequences: int = 512,
) -> MaskedTextWorkload:
    """A BERT that fills in hidden bytes or tokens; see :class:`MaskedTextWorkload`.

    Args:
        size: a name of :data:`extensions.papers.workloads.masked_text.BERT_SIZES`.
        width: width of the model; ``None`` for that of the size.
        layers: number of blocks; ``None`` for that of the size.
        heads: attention heads per block; ``None`` to keep the head size.
        context: tokens per sequence; ``None`` for that of the size.
        later_context: tokens per sequence after ``switch`` examples; ``None`` for no change.
        switch: number of examples before ``later_context``.
        init: ``"scaled"``, or ``"bert"`` for a standard deviation of 0.02 everywhere.
        corpus, data, validation, tokenizer, text_field, dtype, vocab_size: as for the workload
            :func:`~cbs.workloads.text.text`.
        mask_id: id of the tokenizer's mask; ``None`` for a new id.
        validation_sequences: sequences in the validation set of every context.

    Raises:
        UnknownNameError: if there is no such size, init or corpus.
        ConfigError: if an option is invalid or contradicts another.
        DataError: if the data cannot be read, do not fit the vocabulary, or are too short.
    """
    numbers = {"later_context": later_context, "switch": switch, "validation_sequences": validation_sequences}
    all_whole("masked_text", numbers)
    _, shape = changes.of("masked_text", size, BERT_SIZES)
    if init not in INITS:
        raise UnknownNameError(f"unknown init {init!r} of workload 'masked_text': known are {', '.join(INITS)}")
    if (later_context is None) != (switch is None):
        raise ConfigError("options later_context and switch of workload 'masked_text' belong together; give both")
    contexts = (shape.context,) if later_context is None else (shape.context, later_context)
    if len(set(contexts)) < len(contexts):
        raise ConfigError(f"later_context of workload 'masked_text' equals the context {shape.context}; choose another")
    found = source.find("masked_text")
    if mask_id is not None:
        whole("mask_id of workload 'masked_text'", mask_id, least=0)
    return MaskedTextWorkload(
        dataclasses.replace(shape, context=max(contexts)),
        found,
        contexts,
        switch or 0,
        mask_id=mask_id,
        published_init=init == "bert",
        validation_sequences=validation_sequences,
    )


# Shapes by name: the small ones of `text`, and those of Devlin et al. 2019 (arXiv 1810.04805).
BERT_SIZES: dict[str, GPTShape] = {
    "30k": GPTShape(width=32, layers=2, heads=2, context=32),
    "200k": GPTShape(width=64, layers=4, heads=4, context=64),
    "3m": GPTShape(width=256, layers=4, heads=4, context=128),
    "bert-base": GPTShape(width=768, layers=12, heads=12, context=512),
    "bert-large": GPTShape(width=1024, layers=24, heads=16, context=512),
}

EPS = 1e-12  # as BertConfig of transformers


class BERT(nn.Module):
    r"""The encoder of Devlin et al. 2019 (arXiv 1810.04805) with its masked-language head.

    It has LayerNorm after every residual sum, biases, learned positions, and a decoder tied to the token embedding.
    There is one segment and no second task, so neither a segment embedding nor a pooler: 109,512,762 parameters (base)
    and 335,172,410 (large) with 30,522 tokens.

    Initialisation: embeddings :math:`N(0, 0.02^2)`, matrices :math:`N(0, 1/fan\_in)`, or all :math:`N(0, 0.02^2)` as
    published; biases 0, gains 1.

    Args:
        shape: width, layers, heads and longest context.
        vocab_size: number of token ids, including the mask.
        published_init: whether matrices are initialized like the embeddings.
    """

    def __init__(self, shape: GPTShape, vocab_size: int, published_init: bool = False) -> None:
        super().__init__()
        width = shape.width
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(shape.context, width)
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.blocks = nn.ModuleList(EncoderBlock(width, shape.heads) for _ in range(shape.layers))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width, eps=EPS)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=EMBEDDING_STD)
            elif isinstance(module, nn.Linear):
                std = EMBEDDING_STD if published_init else 1.0 / math.sqrt(module.in_features)
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
        self.head = nn.Linear(width, vocab_size, device="meta")
        self.head.weight = self.tokens.weight
        self.head.bias = nn.Parameter(torch.zeros(vocab_size, device=self.tokens.weight.device))

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits at given positions.

        Args:
            ids: token ids, shape ``[sequences, tokens]``; -1 for padding, which is masked in attention.
            positions: positions of the tokens to predict, shape ``[sequences, wanted]``.

        Returns:
            Logits, shape ``[sequences, wanted, vocab_size]``.
        """
        sequences, length = ids.shape
        padding = ids < 0
        real = ~padding[:, None, None, :] if bool(padding.any()) else None
        order = torch.arange(length, device=ids.device)[None]
        x = self.norm(self.tokens(ids.clamp(min=0)) + self.positions(order)).flatten(0, 1)
        for block in self.blocks:
            x = block(x, sequences, real)
        first = torch.arange(sequences, device=ids.device)[:, None] * length
        wanted = x[(positions + first).flatten()]
        return self.head(self.transform_norm(gelu(self.transform(wanted)))).view(*positions.shape, -1)


class EncoderBlock(nn.Module):
    """Self-attention and a GELU network of four times the width, each added to its input and then normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=EPS)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor, sequences: int, real: Tensor | None) -> Tensor:
        """Map hidden states of shape ``[sequences * tokens, width]`` to the same shape.

        ``real``, ``[sequences, 1, 1, tokens]``, is false at padding; ``None`` where there is no padding.
        """
        rows, width = x.shape
        qkv = self.attention_qkv(x).view(sequences, rows // sequences, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=real)
        x = self.attention_norm(x + self.attention_out(mixed.transpose(1, 2).reshape(rows, width)))
        return self.mlp_norm(x + self.mlp_out(gelu(self.mlp_in(x))))


MaskedTokens = tuple[Tensor, Tensor, Tensor]
"""Ids with masks ``[sequences, tokens]``, and positions and original ids of the hidden tokens ``[sequences, hidden]``;
padding is -1 in the first and -100 in the last."""

# Share of the tokens to predict; of these 80 % are replaced by the mask, 10 % by a random token, and 10 % stay (Devlin
# et al. 2019, arXiv 1810.04805).
HIDDEN = 0.15


class MaskedWindows:
    """Random windows with random masks.

    Args:
        windows: windows of the text, one entry per context.
        contexts: tokens of an example, one number or two.
        switch: number of examples before the second context; a batch with both is padded.
        vocab_size: number of ids that a token may be replaced by.
        mask_id: id of the mask.
    """

    def __init__(
        self, windows: Sequence[Windows], contexts: Sequence[int], switch: int, vocab_size: int, mask_id: int
    ) -> None:
        self._windows, self._contexts, self._switch = windows, contexts, switch
        self._vocab_size, self._mask_id = vocab_size, mask_id

    def stream(self, generator: torch.Generator) -> DrawnExamples:
        """Return the training examples that a generator draws."""
        drawn = 0

        def draw(examples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
            nonlocal drawn
            numbers = torch.arange(drawn, drawn + examples)
            drawn += examples
            start = torch.rand(examples, generator=generator, dtype=torch.float64)
            return numbers, start, torch.rand(examples, max(self._contexts), 2, generator=generator)

        return DrawnExamples(draw, self._make, generator)

    def hide(self, ids: Tensor, uniform: Tensor) -> MaskedTokens:
        """Hide the tokens whose first random number, in ``uniform`` of shape ``[sequences, tokens, 2]``, is largest."""
        hidden = max(1, round(HIDDEN * ids.shape[1]))
        places = uniform[..., 0].topk(hidden, dim=1).indices
        targets = ids.gather(1, places)
        fate = uniform[..., 1].gather(1, places)
        others = (((fate - 0.8) * 10).clamp(0, 1 - 1e-6) * self._vocab_size).long()
        shown = torch.where(fate < 0.8, self._mask_id, torch.where(fate < 0.9, others, targets))
        return ids.scatter(1, places, shown), places, targets

    def _make(self, numbers: Tensor, start: Tensor, uniform: Tensor) -> MaskedTokens:
        early = int((numbers < self._switch).sum()) if len(self._contexts) == 2 else len(numbers)
        parts = []
        for stage, rows in enumerate((slice(0, early), slice(early, None))):
            if len(numbers[rows]):
                windows = self._windows[stage]
                starts = (start[rows] * len(windows)).long().numpy()
                parts.append(self.hide(windows.gather(starts), uniform[rows, : self._contexts[stage]]))
        if len(parts) == 1:
            return parts[0]
        padded = []
        for pieces, filler in zip(zip(*parts, strict=True), (-1, 0, -100), strict=True):
            longest = max(piece.shape[1] for piece in pieces)
            padded.append(torch.cat([pad(piece, (0, longest - piece.shape[1]), value=filler) for piece in pieces]))
        return padded[0], padded[1], padded[2]
