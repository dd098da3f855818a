import hashlib

import numpy as np
import pytest

from cbs.errors import DataError
from cbs.workloads.text_parts import corpus as corpus_module
from cbs.workloads.text_parts.corpus import belongs_to_validation, embedded_corpus, make_corpus, scan


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
