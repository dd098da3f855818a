import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import CbsError, ConfigError, DataError
from cbs.workloads.text_parts.corpus import belongs_to_validation
from cbs.workloads.text_parts.files import load_corpus, open_tokens, read_documents
from cbs.workloads.text_parts.tokens import Windows

DOCUMENTS = [f"document {index}: naïve\r\ncafé\n" for index in range(60)]
IDS = np.arange(1000) % 200


def write_txt_folder(folder: Path, documents: list[str]) -> Path:
    folder.mkdir()
    for index, document in enumerate(documents):
        (folder / f"{index:04}.txt").write_bytes(document.encode())
    return folder


def write_jsonl(path: Path, documents: list[str], *, field: str = "text", ascii_only: bool = True) -> Path:
    lines = [json.dumps({"id": 1, field: document}, ensure_ascii=ascii_only) + "\n" for document in documents]
    path.write_bytes("".join(lines).encode())
    return path


def write_parquet(path: Path, documents: list[str], *, field: str = "text") -> Path:
    pq.write_table(pa.table({"id": range(len(documents)), field: documents}), path)
    return path


def write_ids(path: Path, kind: str, ids: np.ndarray = IDS) -> Path:
    ids.astype(kind).tofile(path)
    return path


def joined(documents: list[str]) -> bytes:
    return "\n".join(documents).encode()


def test_document_formats_give_the_same_tokens(tmp_path: Path) -> None:
    corpora = [
        load_corpus(path)
        for path in (
            write_txt_folder(tmp_path / "folder", DOCUMENTS),
            write_jsonl(tmp_path / "a.jsonl", DOCUMENTS),
            write_jsonl(tmp_path / "b.jsonl", DOCUMENTS, ascii_only=False),
            write_parquet(tmp_path / "c.parquet", DOCUMENTS),
        )
    ]
    held_out = [document for document in DOCUMENTS if belongs_to_validation(document)]
    kept = [document for document in DOCUMENTS if not belongs_to_validation(document)]
    assert held_out
    for corpus in corpora:
        assert bytes(corpus.training) == joined(kept)
        assert bytes(corpus.validation) == joined(held_out)
        assert (corpus.vocab_size, corpus.unit) == (256, "byte")
    assert len({corpus.data_hash for corpus in corpora}) == 1


def test_another_field_or_column(tmp_path: Path) -> None:
    jsonl = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS, field="content")
    parquet = write_parquet(tmp_path / "a.parquet", DOCUMENTS, field="content")
    assert list(read_documents(jsonl, "content")) == list(read_documents(parquet, "content")) == DOCUMENTS


def test_one_document_holds_out_its_last_tenth(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes(range(32, 127)) * 10)
    corpus = load_corpus(path)
    assert bytes(corpus.training) + bytes(corpus.validation) == path.read_bytes()
    assert len(corpus.validation) == 95


def test_validation_path_keeps_both_whole(tmp_path: Path) -> None:
    corpus = load_corpus(
        write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), validation=write_parquet(tmp_path / "b.parquet", DOCUMENTS[:3])
    )
    assert bytes(corpus.training) == joined(DOCUMENTS)
    assert bytes(corpus.validation) == joined(DOCUMENTS[:3])
    assert corpus.validation_source.endswith("b.parquet")


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("a.u16", "<u2", None),
        ("a.uint16", "<u2", "uint16"),
        ("a.u32", "<u4", None),
        ("a.UINT32", "<u4", None),
        ("a.bin", "<u2", "uint16"),
        ("a.bin", "<u4", "uint32"),
    ],
)
def test_token_files_are_mapped_and_split(tmp_path: Path, name: str, kind: str, dtype: str | None) -> None:
    corpus = load_corpus(write_ids(tmp_path / name, kind), dtype=dtype, vocab_size=200)
    assert isinstance(corpus.training, np.memmap)
    assert isinstance(corpus.validation, np.memmap)
    assert np.array_equal(corpus.training, IDS[:900])
    assert np.array_equal(corpus.validation, IDS[900:])
    assert (corpus.vocab_size, corpus.unit) == (200, "token")
    assert corpus.data_hash == load_corpus(write_ids(tmp_path / "x.u32", "<u4"), vocab_size=200).data_hash


def test_validation_inside_the_training_folder_is_refused_unless_its_name_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    write_jsonl(tmp_path / "a" / "train.jsonl", DOCUMENTS)
    held_out = write_jsonl(tmp_path / "a" / "heldout.jsonl", DOCUMENTS[:3])
    with pytest.raises(ConfigError, match=r"heldout.jsonl is inside .*, all of which is used for training"):
        load_corpus(tmp_path / "a", validation=held_out)
    write_ids(tmp_path / "b" / "train.u16", "<u2")
    held_out = write_ids(tmp_path / "b" / "val.u16", "<u2", IDS[:50])
    corpus = load_corpus(tmp_path / "b", validation=held_out, vocab_size=200)
    assert (len(corpus.training), len(corpus.validation)) == (len(IDS), 50)


def test_tokenizer_for_text_and_for_token_files(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<eos>": 0, "a": 1, "b": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    text, other = write_jsonl(tmp_path / "a.jsonl", ["a b", "b"]), write_jsonl(tmp_path / "b.jsonl", ["b"])
    corpus = load_corpus(text, validation=other, tokenizer=path)
    assert corpus.training.tolist() == [1, 2, 0, 2]
    assert (corpus.vocab_size, corpus.unit) == (3, "token")
    assert load_corpus(text, validation=other, tokenizer=path, vocab_size=64).vocab_size == 64
    assert load_corpus(write_ids(tmp_path / "a.u16", "<u2", IDS % 3), tokenizer=path).vocab_size == 3
    with pytest.raises(ConfigError, match="below the 3 ids"):
        load_corpus(text, tokenizer=path, vocab_size=2)


@given(document=st.text(min_size=1))
def test_any_document_survives_txt(tmp_path_factory: pytest.TempPathFactory, document: str) -> None:
    path = tmp_path_factory.mktemp("txt") / "a.txt"
    path.write_bytes(document.encode())
    corpus = load_corpus(path)
    assert bytes(corpus.training) + bytes(corpus.validation) == document.encode()


def one_line_error(kind: type[CbsError], path: Path, **options: object) -> str:
    with pytest.raises(kind) as caught:
        load_corpus(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", b"text", ".jsonl"),
        ("a", b"text", "unknown kind"),
        ("a.txt", b"", "no text"),
        ("a.txt", b"caf\xe9", "byte 3"),
        ("a.jsonl", b"", "no text"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": \n', "line 3"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "y", "id\\n": 1}\n', "line 2"),
        ("a.jsonl", b'["text"]\n', "a list"),
        ("a.jsonl", b'{"text": null}\n', "NoneType"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "surrogate"),
        ("a.jsonl", b'{"text": "\xff"}\n', "line 1"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "line 1"),
        ("a.jsonl", b"1" * 5_000 + b"\n", "line 1"),
        ("a.parquet", b"", "Parquet"),
        ("a.parquet", b"PAR1 no, not really PAR1", "Parquet"),
        ("a.u16", b"", "empty"),
        ("a.u16", b"123", "3 bytes"),
    ],
)
def test_bad_content_is_a_one_line_data_error(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert expected in one_line_error(DataError, path, vocab_size=256)


def test_parquet_without_the_column_lists_the_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, field="body")
    message = one_line_error(DataError, path)
    assert "id, body" in message
    assert "text_field" in message


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a.u16", "<u2")
    assert "token id 199" in one_line_error(DataError, path, vocab_size=199)
    text = tmp_path / "a.txt"
    text.write_text("é" * 50)
    assert "vocabulary of 128" in one_line_error(DataError, text, vocab_size=128)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("a.u16", {}, "vocab_size"),
        ("a.bin", {"vocab_size": 200}, "needs dtype"),
        ("a.bin", {"vocab_size": 200, "dtype": "int8"}, "unknown dtype"),
        ("a.u16", {"vocab_size": 200, "dtype": "uint32"}, "leave out dtype"),
        ("a.txt", {"dtype": "uint16"}, "not for text"),
    ],
)
def test_options_that_do_not_fit_the_file(tmp_path: Path, name: str, options: dict[str, object], expected: str) -> None:
    path = write_ids(tmp_path / name, "<u2")
    assert expected in one_line_error(ConfigError, path, **options)


def shards(folder: Path, ids: np.ndarray, sizes: list[int], name: str = "part_{:03}.u16", header: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    for number, piece in enumerate(np.split(ids, np.cumsum(sizes)[:-1])):
        (folder / name.format(number)).write_bytes(header + piece.astype("<u2").tobytes())
    return folder


def test_a_folder_of_ids_is_one_long_text(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 500, 3000)
    ids.astype("<u2").tofile(tmp_path / "whole.u16")
    whole = load_corpus(tmp_path / "whole.u16", vocab_size=500)
    cut = load_corpus(shards(tmp_path / "cut", ids, [7, 1000, 3, 990, 1000]), vocab_size=500)
    assert cut.data_hash == whole.data_hash
    assert (len(cut.training), len(cut.validation)) == (2700, 300)
    for part in ("training", "validation"):
        one, several = Windows(getattr(whole, part), 20, "a"), Windows(getattr(cut, part), 20, "a")
        assert len(one) == len(several)
        starts = np.arange(len(one))
        assert torch.equal(one.gather(starts), several.gather(starts))


def test_shards_whose_names_say_so_are_for_validation(tmp_path: Path) -> None:
    ids = np.arange(100)
    shards(tmp_path / "a", ids, [50, 50], "fineweb_train_{:06}.bin")
    folder = shards(tmp_path / "a", ids + 100, [100], "fineweb_val_{:06}.bin")
    corpus = load_corpus(folder, dtype="uint16", vocab_size=300)
    assert corpus.training[:].tolist() == list(range(100))
    assert corpus.validation[:].tolist() == list(range(100, 200))
    shards(tmp_path / "c", ids, [100])
    (tmp_path / "c" / "val").mkdir()
    shards(tmp_path / "c" / "val", ids + 100, [100])
    assert load_corpus(tmp_path / "c", vocab_size=300).validation[:].tolist() == list(range(100, 200))
    other = shards(tmp_path / "b", ids + 7, [60, 40])
    corpus = load_corpus(folder / "fineweb_train_000001.bin", validation=other, dtype="uint16", vocab_size=300)
    assert corpus.validation[:].tolist() == list(range(7, 107))


def test_the_header_of_llm_c_is_passed_over(tmp_path: Path) -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, 40
    folder = shards(tmp_path / "a", np.arange(40), [40], header=header.tobytes())
    assert open_tokens(folder / "part_000.u16").tolist() == list(range(40))
