"""The command line in this process."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

import cli

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session", autouse=True)
def libraries_leave_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """wandb makes temporary folders when it is imported and removes them at an orderly exit only."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("libraries"))
    yield
    tempfile.tempdir = before


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run ``cbs``; returns exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cbs", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call
