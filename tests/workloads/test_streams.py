import torch
from hypothesis import given
from hypothesis import strategies as st

from cbs.workloads import RandomExamples
from cbs.workloads.streams import BLOCK, RandomIndices


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(1, 10**6))
def test_the_sequence_does_not_depend_on_how_it_is_cut(cuts, count):
    whole = RandomIndices(count, generator()).next(sum(cuts))
    parts = RandomIndices(count, generator())
    assert torch.equal(torch.cat([parts.next(cut) for cut in cuts]), whole)


def test_indices_are_uniform_and_depend_on_the_seed():
    drawn = RandomIndices(10, generator(1)).next(20 * BLOCK)
    share = torch.bincount(drawn, minlength=10) / len(drawn)
    # Standard error of a share of 1/10 in 81920 draws is 0.001; 5 of them.
    assert (share - 0.1).abs().max() < 0.005
    assert not torch.equal(drawn, RandomIndices(10, generator(2)).next(20 * BLOCK))


def test_rows_of_several_tensors_stay_together():
    points, labels = torch.arange(50.0).reshape(25, 2), torch.arange(25)
    drawn, which = RandomExamples((points, labels), generator()).next(100)
    assert torch.equal(drawn, points[which])
    assert torch.equal(RandomExamples(points, generator()).next(100), drawn)
