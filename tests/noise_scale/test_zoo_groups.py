"""Models of the page whose examples are groups of rows."""

import pytest
import torch

from benchmarks.model_cells import EXACT, TOLD, run
from benchmarks.zoo_groups import GROUPS

TOGETHER = [name for name, entry in GROUPS.items() if entry.group is not None]


@pytest.mark.parametrize("name", TOGETHER)
def test_the_losses_of_groups_add_up_to_that_of_the_batch(name: str) -> None:
    entry = GROUPS[name]
    torch.manual_seed(0)
    model, batch = entry.build(), entry.batch(3, torch.Generator().manual_seed(1))
    assert entry.group is not None
    rows = entry.group(len(next(iter(batch.values()))))
    assert rows.unique().tolist() == [0, 1, 2]
    alone = torch.stack([entry.loss(model, entry.take(batch, [group])) for group in range(3)])
    torch.testing.assert_close(entry.shares(batch) @ alone, entry.loss(model, batch))


@pytest.mark.parametrize("name", ["answers that share an advantage", "augmentations side by side"])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_what_belongs_together_is_measured_or_told(name: str, source: str) -> None:
    assert run(f"{name}, groups= given", "eager", source).kind == EXACT
    assert run(name, "eager", source).kind == TOLD
