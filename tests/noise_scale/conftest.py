"""The ranks of the distributed tests, run once for all of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.ranks import found_by

WORKER = Path(__file__).with_name("distributed_worker.py")
FEW = ("ddp, some ranks", "ddp, unequal ranks", "fsdp, hybrid", "unequal ranks", "weighted")
"""What says more on four ranks than on two."""


class Ranks(dict[tuple[int, tuple[str, ...]], list[dict[str, Any]]]):
    """What every rank found in the cases that are named, or in all, by world size; run when it is first asked for."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.folders = folders

    def __missing__(self, key: tuple[int, tuple[str, ...]]) -> list[dict[str, Any]]:
        world, cases = key
        self[key] = found_by(WORKER, self.folders.mktemp("ranks"), world, *cases)
        return self[key]


@pytest.fixture(scope="session")
def all_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(tmp_path_factory)


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, all_ranks: Ranks) -> list[dict[str, Any]]:
    """What every rank found: ``ranks[0]["ddp"]``."""
    return all_ranks[request.param, ()]


@pytest.fixture
def four_ranks(all_ranks: Ranks) -> list[dict[str, Any]]:
    """Likewise, of four, in a few cases."""
    return all_ranks[4, FEW]
