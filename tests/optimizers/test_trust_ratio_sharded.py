"""Sharded parameters (``DTensor``) under LAMB, LARS and MERIT move like whole ones."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.optimizers.sharded_worker import PAIRS, trained
from tests.ranks import found_by

WORKER = Path(__file__).with_name("sharded_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], list[Tensor]]]:
    """What each of two ranks found."""
    return found_by(WORKER, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("case", "place"), PAIRS)
def test_shards_move_like_whole_tensors(
    case: str, place: str, ranks: list[dict[tuple[str, str], list[Tensor]]]
) -> None:
    whole = trained(case)
    for found in ranks:
        # Sums of squares over two shards are added in another order.
        torch.testing.assert_close(found[case, place], whole, rtol=1e-10, atol=1e-13)
