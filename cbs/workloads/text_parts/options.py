"""Options that the workloads of texts share: the corpus, and the shape of a model by name."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from cbs.errors import ConfigError, UnknownNameError
from cbs.registry.values import all_whole
from cbs.workloads.text_parts.corpus import Corpus, check_ids, embedded_corpus, source_code_corpus
from cbs.workloads.text_parts.files import load_corpus
from cbs.workloads.text_parts.gpt import SIZES, BaseModel, GPTShape
from cbs.workloads.text_parts.llama import LlamaShape

CORPORA = {"topics": embedded_corpus, "stdlib": source_code_corpus}
"""Corpora that need no file."""

PARAMETRIZATIONS = ("standard", "mup")
BASE_SIZE = "30k"  # The size whose width is the base width of muP unless another is given


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """The options of a workload that say which text it reads.

    Attributes:
        corpus: a name of :data:`CORPORA` where no data are given; ``None`` for "topics".
        data: file or folder, see :func:`cbs.workloads.text_parts.files.load_corpus` for it and the next four.
        vocab_size: number of token ids; ``None`` for 128 (without data), 256 (bytes) or the tokenizer's.
    """

    corpus: str | None = None
    data: str | None = None
    validation: str | None = None
    tokenizer: str | None = None
    text_field: str = "text"
    dtype: str | None = None
    vocab_size: int | None = None

    def find(self, workload: str) -> Corpus:
        """Return a corpus of the user's own data, or one that needs no file.

        Raises:
            UnknownNameError: if there is no such corpus.
            ConfigError: if an option is invalid or contradicts another.
            DataError: if the data cannot be read or do not fit the vocabulary.
        """
        all_whole(workload, {"vocab_size": self.vocab_size})
        given = vars(self) | {}
        corpus, data, vocab_size = given.pop("corpus"), given.pop("data"), self.vocab_size
        if data is not None:
            if corpus is not None:
                raise ConfigError(
                    f"options data and corpus of workload {workload!r} exclude one another; leave one out"
                )
            return load_corpus(data, **given)
        for name in ("validation", "tokenizer", "dtype"):
            if given[name] is not None:
                raise ConfigError(
                    f"option {name} of workload {workload!r} needs data=PATH; the embedded corpora do not use it"
                )
        if corpus is not None and corpus not in CORPORA:
            raise UnknownNameError(
                f"unknown corpus {corpus!r} of workload {workload!r}: known are {', '.join(CORPORA)}"
            )
        found = CORPORA[corpus or "topics"]()
        if vocab_size is None:
            return found
        for tokens in (found.training, found.validation):
            check_ids(tokens[:], vocab_size, found.training_source)
        return dataclasses.replace(found, vocab_size=vocab_size)


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """The options of a workload that change the named shape of a model; ``None`` to keep a number, and for the heads
    to keep the head size."""

    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    context: int | None = None

    def of(self, workload: str, size: str, sizes: Mapping[str, GPTShape]) -> tuple[GPTShape, GPTShape]:
        """Return the shape called ``size``, as it is and with the changes.

        Raises:
            UnknownNameError: if there is no such shape.
            ConfigError: if an option is invalid, or the heads do not divide the width.
        """
        if size not in sizes:
            known = ", ".join(sizes)
            raise UnknownNameError(f"unknown size {size!r} of workload {workload!r}: known sizes are {known}")
        all_whole(workload, vars(self))
        named = sizes[size]
        width, heads = self.width or named.width, self.heads
        if heads is None:
            heads, rest = divmod(width, named.head_size)
            if rest:
                raise ConfigError(
                    f"width {width} of workload {workload!r} is not a multiple of {named.head_size}, the head size of "
                    f"{size!r}: choose one that is, or give heads"
                )
        elif width % heads:
            raise ConfigError(
                f"width {width} of workload {workload!r} is not divisible by heads={heads}; change one of them"
            )
        layers, context = self.layers or named.layers, self.context or named.context
        return named, dataclasses.replace(named, width=width, heads=heads, layers=layers, context=context)


def llama_shape(size: str, named: GPTShape, shape: GPTShape, kv_heads: int | None, mlp_width: int | None) -> GPTShape:
    """Return a shape with the options that only a Llama has, ``named`` being that of the size before it was changed.

    Raises:
        ConfigError: if they are given for another model, or do not fit its heads.
    """
    if not isinstance(named, LlamaShape) or not isinstance(shape, LlamaShape):
        for name, value in {"kv_heads": kv_heads, "mlp_width": mlp_width}.items():
            if value is not None:
                raise ConfigError(f"option {name} of workload 'text' is for the sizes of Llama, not for {size!r}")
        return shape
    shape = dataclasses.replace(
        shape,
        kv_heads=kv_heads or (named.kv_heads if shape.heads == named.heads else None),
        mlp_width=mlp_width or (named.mlp_width if shape.width == named.width else None),
    )
    if shape.heads % shape.groups or shape.head_size % 2:
        raise ConfigError(
            f"heads={shape.heads} of workload 'text' must be a multiple of kv_heads={shape.groups} and have an even "
            f"size, not {shape.head_size}; change one of them"
        )
    return shape


def mup_base(parametrization: str, base_width: int | None, head_size: int) -> BaseModel | None:
    """Return the base model of muP; ``None`` for the standard parametrization.

    Raises:
        UnknownNameError: if there is no such parametrization.
        ConfigError: if a base width is given without muP.
    """
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
