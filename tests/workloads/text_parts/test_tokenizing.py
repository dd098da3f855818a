import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import DataError, MissingDependencyError
from cbs.workloads.text_parts import corpus as corpus_module
from cbs.workloads.text_parts.corpus import belongs_to_validation, embedded_corpus, make_corpus, scan
from cbs.workloads.text_parts.tokens import ByteTokenizer, FileTokenizer

tokenizers = pytest.importorskip("tokenizers")

DOCUMENTS = ["the cat sat on the mat", "the dog sat", "naïve café, the end"]


def save_tokenizer(folder: Path, special: tuple[str, ...] = ("<|endoftext|>",), *, truncate: bool = False) -> Path:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(DOCUMENTS, trainer)
    if truncate:
        tokenizer.enable_truncation(2)
        tokenizer.enable_padding(length=50)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@given(st.lists(st.text(), min_size=1))
def test_bytes_round_trip(documents: list[str]) -> None:
    encoded = ByteTokenizer().encode(documents)
    assert [bytes(tokens).decode() for tokens in encoded] == documents
    assert all(tokens.dtype == np.uint8 for tokens in encoded)


def test_tokenizer_file_round_trip(tmp_path: Path) -> None:
    path = save_tokenizer(tmp_path)
    encoded = FileTokenizer(path).encode(DOCUMENTS)
    decoder = tokenizers.Tokenizer.from_file(str(path))
    assert [decoder.decode(tokens.tolist()) for tokens in encoded] == DOCUMENTS
    assert all(tokens.dtype == np.uint16 for tokens in encoded)


def test_vocabulary_reaches_past_the_largest_id(tmp_path: Path) -> None:
    path = save_tokenizer(tmp_path)
    inside = tokenizers.Tokenizer.from_file(str(path))
    assert FileTokenizer(path).vocab_size == inside.get_vocab_size()
    gap = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 70_000}, unk_token="a"))
    gap.save(str(path))
    tokenizer = FileTokenizer(path)
    assert tokenizer.vocab_size == 70_001
    assert tokenizer.encode(["b"])[0].tolist() == [70_000]


@pytest.mark.parametrize("name", ["<|endoftext|>", "</s>"])
def test_end_of_text_separates_documents(tmp_path: Path, name: str) -> None:
    path = save_tokenizer(tmp_path, special=("<unk>", name))
    assert FileTokenizer(path).separator.tolist() == [1]


@pytest.mark.parametrize("content", [b"{}", b"not json", b"\xff\xfe\x00", b""])
def test_malformed_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.json") as caught:
        FileTokenizer(path)
    assert "\n" not in str(caught.value)


def test_missing_package_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError, match=r"need tokenizers: pip install tokenizers$"):
        FileTokenizer("tokenizer.json")


def test_embedded_corpus_is_ascii_and_large_enough() -> None:
    corpus = embedded_corpus()
    for tokens in (corpus.training, corpus.validation):
        assert tokens.dtype == np.uint8
        assert tokens.max() < 128
    assert corpus.vocab_size == 128
    assert corpus.unit == "byte"
    assert corpus.fully_checked
    # Sizes differ between versions of Python, by a few per cent.
    assert 300_000 < len(corpus.training) < 800_000
    assert 20_000 < len(corpus.validation) < 150_000


def test_topics_are_on_exactly_one_side() -> None:
    from pydoc_data.topics import topics

    corpus = embedded_corpus()
    training, validation = (bytes(tokens).decode("ascii") for tokens in (corpus.training, corpus.validation))
    for name, text in topics.items():
        plain = text.encode("ascii", "replace").decode("ascii")
        held_out = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10 == 0
        assert (plain in validation) == held_out, name
        assert (plain in training) != held_out, name
    assert len(training) + len(validation) == sum(len(text) + 1 for text in topics.values()) - 2


def test_split_rule_takes_a_tenth() -> None:
    held_out = sum(belongs_to_validation(f"document {index}") for index in range(5000))
    # Binomial with mean 500 and standard deviation 21.
    assert 400 < held_out < 600


def test_hash_depends_on_the_ids_and_where_they_are_cut_not_on_their_type() -> None:
    ids = np.arange(1000)
    as_written = {
        make_corpus(
            ids[:cut].astype(kind), ids[cut:].astype(kind), sources=("a", "b"), vocab_size=1000, unit="token"
        ).data_hash
        for cut, kind in [(900, "<u2"), (900, "<u4"), (900, ">u2"), (899, "<u2")]
    }
    assert len(as_written) == 2


def test_ids_outside_the_vocabulary_name_the_part() -> None:
    good, bad = np.array([1, 2], dtype=np.uint16), np.array([1, 300], dtype=np.uint16)
    with pytest.raises(DataError, match=r"^b: token id 300 .*vocab_size to at least 301"):
        make_corpus(good, bad, sources=("a", "b"), vocab_size=256, unit="token")


def test_long_arrays_are_scanned_in_evenly_spaced_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "BLOCK", 4)
    monkeypatch.setattr(corpus_module, "SAMPLED_BLOCKS", 3)
    tokens = np.zeros(100, dtype=np.uint16)
    digest = scan(tokens, 10, "x")
    looked_at = []
    for index in range(len(tokens)):
        changed = tokens.copy()
        changed[index] = 1
        if scan(changed, 10, "x") != digest:
            looked_at.append(index)
    assert looked_at == [0, 1, 2, 3, 48, 49, 50, 51, 96, 97, 98, 99]
    assert scan(tokens[:99], 10, "x") != digest
    assert not make_corpus(tokens, tokens[:3], sources=("a", "b"), vocab_size=10, unit="token").fully_checked
