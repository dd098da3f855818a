"""Language modelling with an LSTM, on the corpora of the workload ``text`` or the user's own data."""

from torch import Tensor, nn

from cbs.registry.choices import spread
from cbs.registry.values import all_whole
from cbs.workloads import WORKLOADS
from cbs.workloads.text import TextWorkload
from cbs.workloads.text_parts.options import CorpusOptions


class LSTMLanguageModel(nn.Module):
    """An embedding, an LSTM (Hochreiter & Schmidhuber 1997) that starts every sequence from zeros, and a linear head.

    The initialisation is torch's, except for embedding and head, which are normal with standard deviations of 0.02 and
    1/sqrt(width).

    Args:
        width: size of the embedding and of every hidden state.
        layers: number of stacked LSTM layers.
        vocab_size: number of token ids.
    """

    def __init__(self, width: int, layers: int, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocab_size)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=width**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Return next-token logits, shape ``[sequences, tokens, vocab_size]``, for ids ``[sequences, tokens]``."""
        states, _ = self.lstm(self.tokens(ids))
        return self.head(states)


@WORKLOADS.register("lstm")
@spread(CorpusOptions, "source")
def lstm(
    *,
    width: int = 64,
    layers: int = 1,
    context: int = 32,
    source: CorpusOptions,
    validation_sequences: int = 512,
) -> TextWorkload:
    """An LSTM that predicts the next byte or token; see :class:`~cbs.workloads.text.TextWorkload`.

    Args:
        width: size of the embedding and of every hidden state.
        layers: number of stacked LSTM layers.
        context: tokens per sequence; gradients flow through all of them.
        corpus, data, validation, tokenizer, text_field, dtype, vocab_size: as for the workload
            :func:`~cbs.workloads.text.text`.
        validation_sequences: sequences in the fixed validation set.

    Raises:
        UnknownNameError: if there is no such corpus.
        ConfigError: if an option is invalid or contradicts another.
        DataError: if the data cannot be read, do not fit the vocabulary, or are too short.
    """
    numbers = {"width": width, "layers": layers, "context": context}
    all_whole("lstm", {**numbers, "validation_sequences": validation_sequences})
    found = source.find("lstm")
    return TextWorkload(
        lambda: LSTMLanguageModel(width, layers, found.vocab_size), context, found, validation_sequences
    )
