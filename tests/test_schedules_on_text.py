"""The comparison of schedules on text, whole and small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.schedules_on_text import EXAMPLES, sweeps

ROOT = Path(__file__).parents[1]


def test_a_share_of_the_examples_is_one_of_all_that_counts_them() -> None:
    (constant, scheduled), (cosine, seesaw) = sweeps(1.0).values()
    assert {"max_examples=8192", "max_steps=512"} < set(constant)
    assert "growth(first_examples=1024,cap=64)" in scheduled
    assert {"max_examples=8191", "max_steps=1", "schedule.decay_examples=8192"} < set(cosine) & set(seesaw)
    (small, growing), (falling, _) = sweeps(1 / 4).values()
    assert {"max_examples=2048", "max_steps=128"} < set(small)
    assert "growth(first_examples=256,cap=64)" in growing
    assert {"max_examples=2047", "schedule.decay_examples=2048"} < set(falling)
    assert list(sweeps(1.0)) == list(EXAMPLES)


@pytest.mark.slow
def test_the_whole_comparison_is_one_command(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/schedules_on_text.py", "--share", "0.25", "--seeds", "2", "--workers", "1"]
    command += ["--target", "3", "--output", str(tmp_path), "--figure", str(tmp_path / "figure.png")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert said.returncode == 0, said.stderr
    # two thirds of the trials of the whole one, each a quarter as long
    assert "constant learning rate: loss after 4,096 examples" in said.stdout
    assert "cosine to 0: loss after 2,048 examples" in said.stdout
    for name in ("constant 128", "noise_rule 16", "growth 16", "late_switch 16", "seesaw 16", "seesaw 32"):
        assert f"| {name} |" in said.stdout
    assert (tmp_path / "figure.png").stat().st_size > 10_000
