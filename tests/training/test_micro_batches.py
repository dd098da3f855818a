"""How a step is cut up, whatever its size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cbs.compute.pass_sizes import halved, micro_sizes
from cbs.workloads.streams import split_batch

sizes = st.integers(1, 5000)


@given(sizes, st.none() | sizes, sizes)
def test_every_example_is_in_one_pass_and_no_pass_is_too_large(examples, most, wanted):
    found = micro_sizes(examples, most, wanted)
    assert sum(found) == examples
    assert max(found) <= (most or examples)
    assert max(found) - min(found) <= 1
    assert len(found) >= min(wanted, examples)


@given(st.integers(1, 300), st.none() | st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_halving_ends_with_what_fits_whatever_was_known_before(examples, most, fits, beyond):
    def ends(known: int | None) -> int:
        tried = []
        while True:
            tried.append(micro_sizes(examples, halved(examples, most, known))[0])
            if tried[-1] <= fits:
                break
            assert known is None or tried[-1] < known
            known = tried[-1]
        assert len(tried) == 1 or tried[-2] > fits >= tried[-1] >= tried[-2] // 2 - 1
        return tried[-1]

    alone = ends(None)
    assert ends(min(fits + beyond, examples)) == alone if fits < examples else alone == ends(None)


def test_a_pass_of_a_later_stage_is_halved_too():
    assert halved(32, None, 64) == 32
    assert halved(32, 48, 64) == 48
    assert halved(32, 48, 48) == 24
    assert halved(7, None, 1) == 1


def test_parts_of_a_batch_hold_their_examples_and_what_is_no_tensor():
    batch = {"ids": torch.arange(5), "name": "all"}
    assert [(size, part["ids"].tolist(), part["name"]) for size, part in split_batch(batch, [3, 2])] == [
        (3, [0, 1, 2], "all"), (2, [3, 4], "all")
    ]  # fmt: skip
