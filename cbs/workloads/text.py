"""Language modelling on the embedded corpus, which needs no download, or on the user's own text or token files."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.errors import UnknownNameError
from cbs.registry.choices import spread
from cbs.registry.values import all_whole
from cbs.trial.target import Direction
from cbs.workloads import WORKLOADS
from cbs.workloads.base import FixedSet, PredictiveWorkload, cross_entropy_sample
from cbs.workloads.text_parts import Corpus
from cbs.workloads.text_parts.gpt import GPT, SIZES
from cbs.workloads.text_parts.llama import LLAMA_SIZES, Llama, LlamaShape
from cbs.workloads.text_parts.options import CorpusOptions, ShapeOptions, llama_shape, mup_base
from cbs.workloads.text_parts.tokens import WindowStream, windows_of

# Largest number of sequences per forward pass of the validation; small models are faster while the logits fit into the
# cache.
VALIDATION_CHUNK = 128

# Largest number of logits per forward pass of the validation, for large vocabularies: 1 GiB in float32
VALIDATION_LOGITS = 2**28

INITS = ("scaled", "nanogpt")


@WORKLOADS.register("text")
@spread(ShapeOptions, "changes")
@spread(CorpusOptions, "source")
def text(
    *,
    size: str = "30k",
    changes: ShapeOptions,
    kv_heads: int | None = None,
    mlp_width: int | None = None,
    init: str = "scaled",
    parametrization: str = "standard",
    base_width: int | None = None,
    source: CorpusOptions,
    validation_sequences: int = 512,
) -> TextWorkload:
    """A GPT or Llama that predicts the next byte or token; see :class:`TextWorkload`.

    Args:
        size: a name of :data:`cbs.workloads.text_parts.gpt.SIZES`, or, for RMSNorm, rotary positions and SwiGLU, of
            :data:`cbs.workloads.text_parts.llama.LLAMA_SIZES`.
        width: width of the model; ``None`` for that of the size.
        layers: number of blocks; ``None`` for that of the size.
        heads: attention heads per block; ``None`` to keep the head size.
        context: tokens per sequence; ``None`` for that of the size.
        kv_heads: for a Llama: number of key and value heads; ``None`` for that of the size, or as many as ``heads`` if
            these change.
        mlp_width: for a Llama: width of a block's hidden layer; ``None`` for that of the size, or 8/3 of the width if
            this changes.
        init: ``"scaled"``, or ``"nanogpt"`` for matrices with a standard deviation of 0.02 whatever their width, see
            :class:`~cbs.workloads.text_parts.gpt.GPT` and :class:`~cbs.workloads.text_parts.llama.Llama`.
        parametrization: ``"standard"``, or ``"mup"`` for learning rates that transfer across widths, see
            :mod:`cbs.optimizers.widths`. The base model has the head size of the size.
        base_width: with ``"mup"``, the width at which it is the standard parametrization; ``None`` for 32, that of the
            size "30k".
        corpus: without data: ``"topics"``, the documentation that comes with Python, or ``"stdlib"``, the source of its
            library; ``None`` for the first.
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
        UnknownNameError: if there is no such size, init, parametrization or corpus.
        ConfigError: if an option is invalid or contradicts another.
        DataError: if the data cannot be read, do not fit the vocabulary, or are too short.
    """
    numbers = {"base_width": base_width, "kv_heads": kv_heads, "mlp_width": mlp_width}
    all_whole("text", {**numbers, "validation_sequences": validation_sequences})
    named, shape = changes.of("text", size, SIZES | LLAMA_SIZES)
    shape = llama_shape(size, named, shape, kv_heads, mlp_width)
    if init not in INITS:
        raise UnknownNameError(f"unknown init {init!r} of workload 'text': known are {', '.join(INITS)}")
    base = mup_base(parametrization, base_width, named.head_size)
    found = source.find("text")
    fixed_std = init == "nanogpt"

    def build() -> nn.Module:
        if isinstance(shape, LlamaShape):
            return Llama(shape, found.vocab_size, base, fixed_std)
        return GPT(shape, found.vocab_size, base, fixed_std)

    return TextWorkload(build, shape.context, found, validation_sequences)


class TextWorkload(PredictiveWorkload):
    r"""Next-token prediction on windows of a text.

    An example is a window of ``context + 1`` tokens; its loss is the mean cross-entropy, in nats, of its last
    ``context`` tokens given those before. Training windows start anywhere with equal probability and are drawn with
    replacement. The metric is the mean loss of the same ``validation_sequences`` windows, at evenly spaced starts.

    The default target for bytes is 2.4 nats: on the embedded corpus the entropy of a single byte is 3.24 and that of a
    byte given the previous one 2.45, so a model has to use more than the previous byte. For tokens the default is
    :math:`0.6 \ln V` with V the vocabulary size, which is reached early in training and only a first choice.

    Args:
        model: returns a new model, drawn from torch's global random state, from ids ``[sequences, tokens]`` to logits
            ``[sequences, tokens, vocabulary]``; the logits of a token depend only on it and on earlier ones.
        context: number of tokens in a sequence.
        corpus: the data.
        validation_sequences: sequences in the validation set.

    Raises:
        DataError: if the training part has no window, or the validation part fewer than ``validation_sequences``.
    """

    metric: str = "validation_loss"
    direction: Direction = "below"
    example_unit: str = "sequence"

    def __init__(
        self, model: Callable[[], nn.Module], context: int, corpus: Corpus, validation_sequences: int = 512
    ) -> None:
        self.model = model
        self.corpus = corpus
        self.metric_unit = f"nats/{corpus.unit}"
        self.default_target = corpus.first_target
        self.tokens_per_example = context
        self.data_hash = corpus.data_hash
        self._training, held_out = windows_of(corpus, context, validation_sequences)
        chunk = min(VALIDATION_CHUNK, max(1, VALIDATION_LOGITS // (context * corpus.vocab_size)))
        self._validation = FixedSet((held_out,), chunk)
        self.validation_examples = validation_sequences

    def build_model(self) -> nn.Module:
        """Return the model, drawn from torch's global random state."""
        return self.model()

    def training_stream(self, generator: torch.Generator) -> WindowStream:
        """Return a stream of random windows of the training text."""
        return WindowStream(self._training, generator)

    def outputs(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return next-token logits, shape ``[sequences, context, vocabulary]``."""
        return model(batch[:, :-1])

    def output_losses(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy of every sequence, in nats per token, shape ``[sequences]``."""
        losses = cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        return losses.view(len(batch), -1).mean(1)

    def curvature_sample(self, outputs: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        r"""Return gradients of the cross-entropy at tokens drawn from the model, over :math:`\sqrt{context}`.

        The Hessian of the mean over T tokens has blocks :math:`(diag(p) - p p^\top)/T`, one for each token.
        """
        return cross_entropy_sample(outputs, generator) / math.sqrt(outputs.shape[1])

    def validate(self, model: nn.Module) -> float:
        """Return the mean loss over the validation set, in nats per token; bitwise the same for the same weights."""
        (loss,) = self._validation.means(
            lambda part: self.example_losses(model, part[0])[:, None], next(model.parameters()).device
        )
        return loss
