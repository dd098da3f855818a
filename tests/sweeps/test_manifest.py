"""What ``sweep.json`` says of the software that ran."""

from __future__ import annotations

import platform

import torch

import cbs
from sweeps.manifest import provenance


def test_versions_are_those_that_run() -> None:
    versions = provenance("cbs sweep")["versions"]
    assert versions["python"] == platform.python_version()
    assert versions["cbs"] == cbs.__version__
    assert versions["torch"] == torch.__version__
