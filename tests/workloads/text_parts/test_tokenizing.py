import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import DataError, MissingDependencyError
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
