"""What the libraries that importers use need."""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def libraries_leave_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """wandb makes temporary folders when it is imported and removes them at an orderly exit only."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("libraries"))
    yield
    tempfile.tempdir = before
