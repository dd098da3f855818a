"""One function of every group, against the function of the whole batch."""

from __future__ import annotations

import pytest
import torch

from cbs.noise_scale.grouping import Cells
from cbs.noise_scale.layers import group_by_group


@pytest.mark.parametrize("few", [0, 8])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_groups_with_equal_copies_give_what_the_whole_batch_gives(
    groups: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_by_group, "FEW_GROUPS", few)
    rows, weight = torch.arange(12.0).view(6, 2), torch.tensor([2.0, -1.0])
    cells = Cells(6, parts=groups)
    copies = weight.expand(groups, -1)
    found = group_by_group.group_by_group(lambda at: (at[0] @ at[1], "told"), [rows, weight], [None, copies], cells, 6)
    assert torch.equal(found[0], rows @ weight)
    assert found[1] == "told"
    alone = group_by_group.group_by_group(lambda at: at[0] * 3, [weight], [copies], cells, None)
    assert torch.equal(alone, copies * 3)
