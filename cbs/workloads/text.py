"""Language modelling on the embedded corpus, which needs no download, or on a person's own text or token files."""

from __future__ import annotations

import dataclasses
import math
from difflib import get_close_matches

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.errors import ConfigError, DataError, UnknownNameError
from cbs.registry.domains import whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.likelihoods import FixedSet, cross_entropy_sample
from cbs.workloads.streams import RandomIndices
from cbs.workloads.text_parts import GPT, SIZES, Corpus, GPTShape, embedded_corpus, load_corpus
from cbs.workloads.text_parts.corpus import check_ids
from cbs.workloads.text_parts.gpt import BaseModel

VALIDATION_CHUNK = 128
"""Most sequences per forward pass of the validation; small models are faster while the logits fit the cache."""

VALIDATION_LOGITS = 2**28
"""Most logits per forward pass of the validation, for large vocabularies: 1 GiB in float32."""

BYTE_TARGET = 2.4
TOKEN_TARGET_SHARE = 0.6
PARAMETRIZATIONS = ("standard", "mup")
BASE_SIZE = "30k"
"""The size whose width is the base width of muP unless another is given."""


@WORKLOADS.register("text")
def text(
    *,
    size: str = "30k",
    width: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    context: int | None = None,
    parametrization: str = "standard",
    base_width: int | None = None,
    data: str | None = None,
    validation: str | None = None,
    tokenizer: str | None = None,
    text_field: str = "text",
    dtype: str | None = None,
    vocab_size: int | None = None,
    validation_sequences: int = 512,
) -> TextWorkload:
    """A GPT that predicts the next byte or token; see :class:`TextWorkload`.

    Args:
        size: a name of :data:`cbs.workloads.text_parts.gpt.SIZES`.
        width: width of the model; ``None`` for that of the size.
        layers: number of blocks; ``None`` for that of the size.
        heads: attention heads per block; ``None`` for as many as keep the head size of the size.
        context: tokens per sequence; ``None`` for that of the size.
        parametrization: ``"standard"``, or ``"mup"`` for learning rates that transfer across widths, see
            :mod:`cbs.optimizers.widths`. The base model has the head size of the size.
        base_width: with ``"mup"``, the width at which it is the standard parametrization; ``None`` for 32, that of the
            size "30k".
        data: file or folder with the text, see :func:`cbs.workloads.text_parts.files.load_corpus` for the formats and
            for the options ``validation``, ``tokenizer``, ``text_field`` and ``dtype``; ``None`` for the embedded
            corpus.
        validation: file or folder with the validation text; ``None`` to split ``data``.
        tokenizer: path of a ``tokenizer.json``; ``None`` for bytes.
        text_field: field or column that holds the text.
        dtype: type of the ids in a ``.bin`` file.
        vocab_size: number of token ids; ``None`` for 128 (embedded corpus), 256 (bytes) or the tokenizer's.
        validation_sequences: sequences in the fixed validation set.

    Raises:
        UnknownNameError: if there is no such size.
        ConfigError: if an option is out of its domain or contradicts another.
        DataError: if the data cannot be read, do not fit the vocabulary, or are too short.
    """
    if size not in SIZES:
        raise UnknownNameError(f"unknown size {size!r} of workload 'text': known sizes are {', '.join(SIZES)}")
    numbers = {
        "width": width,
        "layers": layers,
        "heads": heads,
        "context": context,
        "base_width": base_width,
        "vocab_size": vocab_size,
        "validation_sequences": validation_sequences,
    }
    for name, number in numbers.items():
        if number is not None:
            whole(f"{name} of workload 'text'", number)
    shape = _shape(size, width=width, layers=layers, heads=heads, context=context)
    base = _base(parametrization, base_width, SIZES[size].head_size)
    if data is not None:
        corpus = load_corpus(
            data, validation=validation, tokenizer=tokenizer, text_field=text_field, dtype=dtype, vocab_size=vocab_size
        )
        return TextWorkload(shape, corpus, validation_sequences, base)
    for name, option in {"validation": validation, "tokenizer": tokenizer, "dtype": dtype}.items():
        if option is not None:
            raise ConfigError(f"option {name} of workload 'text' needs data=PATH, the embedded corpus does not use it")
    corpus = embedded_corpus()
    if vocab_size is not None:
        for tokens in (corpus.training, corpus.validation):
            check_ids(tokens, vocab_size, corpus.training_source)
        corpus = dataclasses.replace(corpus, vocab_size=vocab_size)
    return TextWorkload(shape, corpus, validation_sequences, base)


def _shape(size: str, *, width: int | None, layers: int | None, heads: int | None, context: int | None) -> GPTShape:
    named = SIZES[size]
    width = width or named.width
    if heads is None:
        heads, rest = divmod(width, named.head_size)
        if rest:
            raise ConfigError(
                f"width {width} of workload 'text' is not a multiple of {named.head_size}, the head size of {size!r}: "
                "choose one that is, or give heads"
            )
    elif width % heads:
        raise ConfigError(f"width {width} of workload 'text' is not divisible by heads={heads}; change one of them")
    return GPTShape(width=width, layers=layers or named.layers, heads=heads, context=context or named.context)


def _base(parametrization: str, base_width: int | None, head_size: int) -> BaseModel | None:
    if parametrization not in PARAMETRIZATIONS:
        near = get_close_matches(str(parametrization).lower(), PARAMETRIZATIONS, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownNameError(
            f"unknown parametrization {parametrization!r} of workload 'text': {hint}known are "
            f"{', '.join(PARAMETRIZATIONS)}"
        )
    if parametrization == "mup":
        return BaseModel(width=base_width or SIZES[BASE_SIZE].width, head_size=head_size)
    if base_width is not None:
        raise ConfigError("option base_width of workload 'text' needs parametrization=mup")
    return None


class TextWorkload:
    r"""Next-token prediction on windows of a text.

    An example is a window of ``context + 1`` tokens; its loss is the mean cross-entropy, in nats, of its last
    ``context`` tokens given those before. Training windows start anywhere with equal probability and are drawn with
    replacement. The metric is the mean loss of the same ``validation_sequences`` windows, at evenly spaced starts.

    The default target for bytes is 2.4 nats: on the embedded corpus, where single bytes carry 3.24 and a byte given the
    one before it 2.45, a model has to use more than the previous byte. For tokens it is :math:`0.6 \ln V` with V the
    vocabulary size, early in training and no more than a place to start from.

    Args:
        shape: shape of the model; its context is the sequence length.
        corpus: the data.
        validation_sequences: sequences in the validation set.
        base: base model of muP; ``None`` for the standard parametrization.

    Raises:
        DataError: if the training part holds no window, or the validation part fewer than ``validation_sequences``.
    """

    metric: str = "validation_loss"
    direction: Direction = "below"
    example_unit: str = "sequence"
    tokens_per_example: int | None
    data_hash: str | None

    def __init__(
        self, shape: GPTShape, corpus: Corpus, validation_sequences: int = 512, base: BaseModel | None = None
    ) -> None:
        self.shape = shape
        self.base = base
        self.corpus = corpus
        self.metric_unit = f"nats/{corpus.unit}"
        token_target = round(TOKEN_TARGET_SHARE * math.log(corpus.vocab_size), 2)
        self.default_target = BYTE_TARGET if corpus.unit == "byte" else token_target
        self.tokens_per_example = shape.context
        self.data_hash = corpus.data_hash
        unchecked = None if corpus.fully_checked else corpus.vocab_size
        self._training = Windows(corpus.training, shape.context, corpus.training_source, unchecked)
        validation = Windows(corpus.validation, shape.context, corpus.validation_source, unchecked)
        _require_windows(self._training, "training", 1)
        _require_windows(validation, "validation", validation_sequences)
        starts = np.linspace(0, len(validation) - 1, validation_sequences).astype(np.int64)
        chunk = min(VALIDATION_CHUNK, max(1, VALIDATION_LOGITS // (shape.context * corpus.vocab_size)))
        self._validation = FixedSet((validation.gather(starts),), chunk)
        self.validation_examples = validation_sequences

    def build_model(self) -> nn.Module:
        """A :class:`~cbs.workloads.text_parts.gpt.GPT` drawn from torch's global random state."""
        return GPT(self.shape, self.corpus.vocab_size, self.base)

    def training_stream(self, generator: torch.Generator) -> WindowStream:
        """Random windows of the training text."""
        return WindowStream(self._training, generator)

    def example_losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean cross-entropy of every sequence, in nats per token, shape ``[sequences]``."""
        return self.output_losses(self.outputs(model, batch), batch)

    def outputs(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Next-token logits, shape ``[sequences, context, vocabulary]``."""
        return model(batch[:, :-1])

    def output_losses(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Mean cross-entropy of every sequence, in nats per token, shape ``[sequences]``."""
        losses = cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        return losses.view(len(batch), -1).mean(1)

    def curvature_sample(self, outputs: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        r"""Gradient of the cross-entropy at tokens drawn from the model, divided by :math:`\sqrt{context}`.

        The Hessian of the mean over T tokens has blocks :math:`(diag(p) - p p^\top)/T`, one for each token.
        """
        return cross_entropy_sample(outputs, generator) / math.sqrt(outputs.shape[1])

    def validate(self, model: nn.Module) -> float:
        """Mean loss over the validation set, in nats per token; bitwise the same for the same weights."""
        (loss,) = self._validation.means(
            lambda part: self.example_losses(model, part[0])[:, None], next(model.parameters()).device
        )
        return loss


class Windows:
    """All windows of ``context + 1`` consecutive tokens of a text, without a copy of it.

    Args:
        tokens: one-dimensional array of ids, in memory or memory-mapped.
        context: tokens a window predicts.
        source: where they are from, for error messages.
        vocab_size: every id that is read has to be below it; ``None`` if that is known already.
    """

    def __init__(self, tokens: np.ndarray, context: int, source: str, vocab_size: int | None = None) -> None:
        self.tokens = len(tokens)
        self.context = context
        self.source = source
        self._vocab_size = vocab_size
        self._windows = sliding_window_view(tokens, context + 1) if len(tokens) > context else tokens[:0, None]

    def __len__(self) -> int:
        return len(self._windows)

    def gather(self, starts: np.ndarray) -> Tensor:
        """The windows at ``starts``, as integers of shape ``[starts, context + 1]``.

        Raises:
            DataError: if an id is outside the vocabulary.
        """
        rows = self._windows[starts]
        if self._vocab_size is not None:
            check_ids(rows, self._vocab_size, self.source)
        return torch.from_numpy(rows.astype(np.int64))


class WindowStream:
    """Windows at random starts, with replacement; the sequence depends on the generator alone.

    Args:
        windows: what to draw from.
        generator: a CPU generator.
    """

    def __init__(self, windows: Windows, generator: torch.Generator) -> None:
        self._windows = windows
        self._starts = RandomIndices(len(windows), generator)

    def next(self, examples: int) -> Tensor:
        """The next ``examples`` windows, integers of shape ``[examples, context + 1]``."""
        return self._windows.gather(self._starts.next(examples).numpy())

    def skip(self, examples: int) -> None:
        """Go on after the next ``examples`` windows, which are not read."""
        self._starts.skip(examples)


def _require_windows(windows: Windows, part: str, wanted: int) -> None:
    if len(windows) >= wanted:
        return
    advice = "give more data or a smaller context"
    if part == "validation":
        advice = "pass validation=PATH with more text, or lower validation_sequences or context"
    raise DataError(
        f"{windows.source}: {windows.tokens} tokens for {part} hold {len(windows)} sequences of {windows.context} + 1 "
        f"tokens, fewer than the {wanted} needed; {advice}"
    )
