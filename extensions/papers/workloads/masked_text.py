"""Masked language modelling: tokens are masked anew whenever a sequence is drawn, and the context may grow once."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.errors import ConfigError, UnknownNameError
from cbs.registry.values import all_whole, whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import FixedSet, PredictiveWorkload, cross_entropy_sample
from cbs.workloads.streams import DrawnExamples
from cbs.workloads.text_parts.corpus import Corpus
from cbs.workloads.text_parts.gpt import GPTShape
from cbs.workloads.text_parts.options import find_corpus, resized, size_named
from cbs.workloads.text_parts.tokens import windows_of
from extensions.papers.bert import BERT, BERT_SIZES, MaskedTokens, MaskedWindows

INITS = ("scaled", "bert")
MASK_SEED = 2**31 - 1
"""Seed of the masks of the validation set."""


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
        published_init: see :class:`~extensions.papers.bert.BERT`.
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
        """Return a :class:`~extensions.papers.bert.BERT` drawn from torch's global random state."""
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
def masked_text(
    *,
    size: str = "30k",
    width: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    context: int | None = None,
    later_context: int | None = None,
    switch: int | None = None,
    init: str = "scaled",
    corpus: str | None = None,
    data: str | None = None,
    validation: str | None = None,
    tokenizer: str | None = None,
    text_field: str = "text",
    dtype: str | None = None,
    vocab_size: int | None = None,
    mask_id: int | None = None,
    validation_sequences: int = 512,
) -> MaskedTextWorkload:
    """A BERT that fills in hidden bytes or tokens; see :class:`MaskedTextWorkload`.

    Args:
        size: a name of :data:`extensions.papers.bert.BERT_SIZES`.
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
    named = size_named("masked_text", size, BERT_SIZES)
    numbers = {"width": width, "layers": layers, "heads": heads, "context": context, "later_context": later_context}
    numbers |= {"switch": switch, "vocab_size": vocab_size, "validation_sequences": validation_sequences}
    all_whole("masked_text", numbers)
    if init not in INITS:
        raise UnknownNameError(f"unknown init {init!r} of workload 'masked_text': known are {', '.join(INITS)}")
    if (later_context is None) != (switch is None):
        raise ConfigError("options later_context and switch of workload 'masked_text' belong together; give both")
    shape = resized("masked_text", size, named, width=width, layers=layers, heads=heads, context=context)
    contexts = (shape.context,) if later_context is None else (shape.context, later_context)
    if len(set(contexts)) < len(contexts):
        raise ConfigError(f"later_context of workload 'masked_text' equals the context {shape.context}; choose another")
    options: dict[str, Any] = {"validation": validation, "tokenizer": tokenizer, "text_field": text_field}
    found = find_corpus("masked_text", data=data, corpus=corpus, dtype=dtype, vocab_size=vocab_size, **options)
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
