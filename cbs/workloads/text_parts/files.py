"""Readers of the user's own data: text files, JSON lines, Parquet, and flat files of token ids.

Documents (``.txt``, ``.jsonl``, ``.parquet``, or a folder of them) are tokenized in memory. Flat files of little-endian
16-bit or 32-bit ids (``.u16``, ``.uint16``, ``.u32``, ``.uint32``, or ``.bin`` with a ``dtype``) are memory-mapped and
never read completely; the ``train.bin`` and ``val.bin`` of nanoGPT are such files. The header that llm.c writes before
the ids is skipped. A folder of such files is one long text in the order of their names.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cbs.errors import ConfigError, DataError
from cbs.files import ended, inner_path, whole
from cbs.workloads.text_parts.corpus import Corpus, Tokens, TokenShards, belongs_to_validation, make_corpus
from cbs.workloads.text_parts.tokens import ByteTokenizer, FileTokenizer, Tokenizer

DOCUMENT_SUFFIXES = (".txt", ".jsonl", ".parquet")
HEADERS = (20240520, 20240801)  # Values of the first four bytes of files that llm.c writes; their ids begin after 1 KiB

VALIDATION_NAME = re.compile(r"(^|[^a-z])(val|valid|validation)([^a-z]|$)", re.IGNORECASE)
"""Pattern of file names for validation, as in ``fineweb_val_000000.bin`` or ``val/000000.bin``."""

TOKEN_DTYPES = {".u16": "uint16", ".uint16": "uint16", ".u32": "uint32", ".uint32": "uint32", ".bin": None}
DOCUMENTS_AT_ONCE = 1024  # That many documents are held in memory


def load_corpus(
    data: str | Path,
    *,
    validation: str | Path | None = None,
    tokenizer: str | Path | None = None,
    text_field: str = "text",
    dtype: str | None = None,
    vocab_size: int | None = None,
) -> Corpus:
    """Read a corpus from files and split it into training and validation.

    With ``validation``, that path holds the validation part. Without it, a document is held out if the SHA-256 of its
    text is a multiple of 10 (equal documents stay on one side); where that leaves one side empty, as it does with a
    single document, and for flat files of ids, the last tenth of the tokens is held out.

    Args:
        data: a file, or a folder whose ``.txt``, ``.jsonl`` and ``.parquet`` files, or else whose files of ids, at any
            depth, are read in the order of their paths. Files of ids with ``val`` in their path are for validation.
        validation: a file or folder for validation.
        tokenizer: path of a ``tokenizer.json``; ``None`` for UTF-8 bytes.
        text_field: field of a JSON line or column of a Parquet file that holds the text.
        dtype: ``"uint16"`` or ``"uint32"``, for ``.bin`` files.
        vocab_size: number of token ids, at least the tokenizer's (a larger one pads the embedding); required for flat
            files of ids without a tokenizer.

    Raises:
        DataError: if a file is missing, unreadable, empty, of an unknown kind, or holds an id outside the vocabulary.
        ConfigError: if the options contradict each other or the kind of file.
    """
    paths = [Path(path).expanduser() for path in (data, validation) if path is not None]
    flat = [_is_flat(path) for path in paths]
    inside = inner_path(paths[0], paths[-1])
    if inside is not None and not (flat[0] and VALIDATION_NAME.search(inside)):
        raise ConfigError(f"{paths[-1]} is inside {paths[0]}, all of which is used for training; move it elsewhere")
    encoder: Tokenizer = FileTokenizer(tokenizer) if tokenizer is not None else ByteTokenizer()
    if any(flat) and tokenizer is None and vocab_size is None:
        raise ConfigError(f"{paths[flat.index(True)]}: a file of token ids needs vocab_size=N or tokenizer=PATH")
    if not any(flat) and dtype is not None:
        raise ConfigError(f"{paths[0]}: dtype={dtype!r} is for .bin files of token ids, not for text")
    if not all(flat) and vocab_size is not None and tokenizer is not None and vocab_size < encoder.vocab_size:
        raise ConfigError(f"vocab_size={vocab_size} is below the {encoder.vocab_size} ids of {tokenizer}")
    if len(paths) == 1 and not flat[0]:
        training, held_out = _split_documents(paths[0], text_field, encoder)
    else:
        whole = [
            _tokens_in(path, dtype)
            if is_flat
            else [_not_empty(_join((tokens for _, tokens in _encoded(path, text_field, encoder)), encoder), path)]
            for path, is_flat in zip(paths, flat, strict=True)
        ]
        training = whole[0][0]
        if len(whole) == 2:  # a folder for validation may or may not have validation file names
            held_out = whole[1][-1]
        else:
            training, held_out = whole[0] if len(whole[0]) == 2 else _split_tokens(training)
    return make_corpus(
        training,
        held_out,
        sources=(str(paths[0]), str(paths[-1])),
        vocab_size=encoder.vocab_size if vocab_size is None else vocab_size,
        unit="token" if any(flat) else encoder.unit,
    )


def open_tokens(path: Path, dtype: str | None = None) -> np.memmap:
    """Map a flat file of little-endian token ids.

    Args:
        path: the file.
        dtype: ``"uint16"`` or ``"uint32"``; needed for ``.bin``, implied by the other suffixes.
    """
    implied = TOKEN_DTYPES[path.suffix.lower()]
    if dtype not in (None, "uint16", "uint32"):
        raise ConfigError(f"{path}: unknown dtype {dtype!r}; use uint16 or uint32")
    if implied is not None and dtype is not None and implied != dtype:
        raise ConfigError(f"{path}: the suffix means {implied}, but the option dtype is {dtype}; leave out dtype")
    if implied is None and dtype is None:
        raise ConfigError(f"{path}: a .bin file needs dtype=uint16 or dtype=uint32")
    kind = np.dtype(implied or dtype).newbyteorder("<")
    with _reading(path):
        size = path.stat().st_size
        if size == 0:
            raise DataError(f"{path}: the file is empty")
        if size % kind.itemsize:
            raise DataError(f"{path}: {size} bytes are not a whole number of {kind.name} token ids; check dtype")
        with path.open("rb") as stream:
            header = 1024 if int.from_bytes(stream.read(4), "little") in HEADERS and size > 1024 else 0
        return np.memmap(path, dtype=kind, mode="r", offset=header)


def _tokens_in(path: Path, dtype: str | None) -> list[Tokens]:
    """Return the ids of a file, or those of a folder: for training, and for validation where file names say so."""
    if not path.is_dir():
        return [open_tokens(path, dtype)]
    files = _flat_files(path)
    held_out = [file for file in files if VALIDATION_NAME.search(file.relative_to(path).as_posix())]
    sides = [side for side in ([file for file in files if file not in held_out], held_out) if side]
    shards = []
    for side in sides:
        lengths = [len(open_tokens(file, dtype)) for file in side]
        shards.append(TokenShards([partial(open_tokens, file, dtype) for file in side], lengths))
    return list(shards)


def _flat_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in TOKEN_DTYPES and file.is_file())


def read_documents(path: Path, text_field: str = "text") -> Iterator[str]:
    """Yield the documents of a file or folder, in order; a ``.txt`` file is one document, with unchanged line ends."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in DOCUMENT_SUFFIXES and file.is_file())
        if not files:
            raise DataError(f"{path}: the folder holds no {', '.join(DOCUMENT_SUFFIXES)} file")
        for file in files:
            yield from read_documents(file, text_field)
        return
    with _reading(path):
        match ended(path).suffix.lower():
            case ".jsonl":
                yield from _read_jsonl(path, text_field)
            case ".parquet":
                yield from _read_parquet(path, text_field)
            case _:
                yield whole(path, 3.0).read_bytes().decode("utf-8")


def _read_jsonl(path: Path, text_field: str) -> Iterator[str]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", None) or _one_line(error)
                raise DataError(f"{where}: not valid JSON ({reason})") from None
            if not isinstance(record, dict) or text_field not in record:
                content = f"fields {', '.join(record)}" if isinstance(record, dict) else f"a {type(record).__name__}"
                raise DataError(f"{where}: no field {text_field!r} but {_one_line(content)}; set text_field=NAME")
            yield _require_text(record[text_field], f"{where}, field {text_field!r}")


def _read_parquet(path: Path, text_field: str) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        columns = file.schema_arrow.names
        if text_field not in columns:
            known = _one_line(", ".join(columns))
            raise DataError(f"{path}: no column {text_field!r}; set text_field to one of: {known}")
        row = 0
        for batch in file.iter_batches(batch_size=DOCUMENTS_AT_ONCE, columns=[text_field]):
            for value in batch.column(0).to_pylist():
                yield _require_text(value, f"{path}, row {row}, column {text_field!r}")
                row += 1


def _require_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: expected text, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: not valid Unicode, unpaired surrogate at character {error.start}") from None
    return value


def _is_flat(path: Path) -> bool:
    """Return whether a path is a flat file of ids; raises for a missing path and for an unknown suffix."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    suffix = path.suffix.lower()
    if not path.is_dir() and suffix not in DOCUMENT_SUFFIXES and suffix not in TOKEN_DTYPES:
        known = ", ".join((*DOCUMENT_SUFFIXES, *TOKEN_DTYPES))
        raise DataError(f"{path}: unknown kind of file {suffix!r}; use one of {known}, or a folder of text")
    if path.is_dir():
        documents = any(file.suffix.lower() in DOCUMENT_SUFFIXES for file in path.rglob("*"))
        return not documents and bool(_flat_files(path))
    return suffix in TOKEN_DTYPES


def _split_tokens(tokens: Tokens) -> list[Tokens]:
    # The last tenth validates: with a single cut hardly any window lies on both sides.
    cut = len(tokens) - len(tokens) // 10
    if isinstance(tokens, TokenShards):
        return [tokens.between(0, cut), tokens.between(cut, len(tokens))]
    return [tokens[:cut], tokens[cut:]]


def _split_documents(path: Path, text_field: str, encoder: Tokenizer) -> list[Tokens]:
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    everything = []
    for document, tokens in _encoded(path, text_field, encoder):
        sides[belongs_to_validation(document)].append(tokens)
        everything.append(tokens)
    training, validation = (_join(side, encoder) for side in sides)
    if len(training) and len(validation):
        return [training, validation]
    return _split_tokens(_not_empty(_join(everything, encoder), path))


def _encoded(path: Path, text_field: str, encoder: Tokenizer) -> Iterator[tuple[str, np.ndarray]]:
    documents = read_documents(path, text_field)
    while chunk := list(islice(documents, DOCUMENTS_AT_ONCE)):
        yield from zip(chunk, encoder.encode(chunk), strict=True)


def _join(documents: Iterable[np.ndarray], encoder: Tokenizer) -> np.ndarray:
    pieces = list(chain.from_iterable((encoder.separator, tokens) for tokens in documents))[1:]
    return np.concatenate(pieces) if pieces else encoder.separator[:0]


def _not_empty(tokens: np.ndarray, path: Path) -> np.ndarray:
    if not len(tokens):
        raise DataError(f"{path}: holds no text")
    return tokens


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of the system, the decoder or Parquet about a file into a :class:`~cbs.errors.DataError`."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); convert it to UTF-8") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or _one_line(error)})") from None
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file ({_one_line(error)})") from None


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
