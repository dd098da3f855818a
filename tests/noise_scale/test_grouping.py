"""Norms of examples, a piece at a time."""

import pytest
import torch

from cbs.noise_scale import grouping
from cbs.noise_scale.grouping import norms


@pytest.mark.parametrize("piece", [1, 20, 10**9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_norms_of_examples_do_not_depend_on_the_pieces(
    piece: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "PIECE", piece)
    generator = torch.Generator().manual_seed(0)
    one, other = ((3 * torch.randn(12, 7, dtype=torch.cfloat, generator=generator)) for _ in range(2))
    one, other = (each.to(dtype) if dtype.is_complex else each.real.to(dtype) for each in (one, other))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for subtracted, left in ((None, one.to(wide)), (other, one.to(wide) - other.to(wide))):
        wanted = [float(left[2 * at : 2 * at + 2].abs().square().sum().sqrt()) for at in range(6)]
        assert norms(one, 6, subtracted).tolist() == pytest.approx(wanted)
