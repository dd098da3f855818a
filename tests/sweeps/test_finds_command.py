"""What ``cbs sweep`` says beforehand, and refuses, where no batch sizes are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
SWEEP = ("sweep", "--workload", "noisy_quadratic", "--optim", "sgd")
PROGRAM = (
    *("sweep", "--optim", "sgd", "--command", "python -c pass {batch_size} {lr} {seed} {folder} {steps}"),
    *("--reads", "jsonl", "--metric", "loss", "--direction", "below", "--metric-unit", "nats"),
    *("--example-unit", "tree"),
)


@pytest.mark.parametrize(
    ("words", "sizes", "seeds"),
    [
        ((*SWEEP, "--target", "0.4"), [16], [0]),
        ((*SWEEP, "--target", "0.4", "--seeds", "4,7"), [16], [4]),
        ((*SWEEP, "--target", "0.4", "--batch-sizes", "4,8", "--precision", "0.3"), [4, 8], [0, 1, 2]),
        ((*SWEEP, "--target", "0.4", "--set", "policy=once"), [4, 8, 16, 32, 64, 128, 256, 512], [0, 1, 2]),
        ((*SWEEP, "--budget", "20000"), [8, 32], [0, 1, 2]),
        # the largest batch sizes of the recipe do not fit into these, and are not asked for
        ((*SWEEP, "--budget", "2000"), [8, 32], [0, 1, 2]),
        ((*SWEEP, "--budget", "300"), [2, 8], [0, 1, 2]),
        ((*PROGRAM, "--target", "2", "--set", "max_steps=900"), [8, 32], [0]),
        ((*PROGRAM, "--budget", "400"), [4, 16], [0, 1, 2]),
    ],
)
def test_a_dry_run_says_what_it_begins_with(
    words: tuple[str, ...], sizes: list[int], seeds: list[int], tmp_path: Path, run: Run, children_here: None
) -> None:
    code, out, err = run(*words, "--dry-run", "--json", "-o", tmp_path / "there")
    assert code == 0, err
    report = json.loads(out)
    assert (report["axes"]["batch_sizes"], report["axes"]["seeds"]) == (sizes, seeds)
    assert ("depends on how they end" in " ".join(err.split())) == ("policy=once" not in words)
    assert not (tmp_path / "there").exists()


def test_a_dry_run_is_told_in_lines(tmp_path: Path, run: Run, children_here: None) -> None:
    _, out, _ = run(*SWEEP, "--target", "0.4", "--axis", "clip_norm=1,none", "--dry-run", "-o", tmp_path / "there")
    assert out.count("batch sizes   16\nseeds         0\n") == 2
    assert out.count("price         B_crit within 20%") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "20000", "--max-runs", "5"), "--budget does not go with --max-runs"),
        (("--budget", "20000", "--lrs", "0.1,0.2"), "or give --batch-sizes"),
        (
            ("--budget", "20000", "--lrs", "0.1,0.2", "--batch-sizes", "4,8", "--precision", "0.3"),
            "--precision does not go with --lrs",
        ),
        (("--target", "0.4", "--max-runs", "0"), "--max-runs must be above 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    words: tuple[str, ...], said: str, run: Run, children_here: None
) -> None:
    code, _, err = run(*SWEEP, *words, "--dry-run")
    assert (code, said in " ".join(err.split())) == (2, True)
