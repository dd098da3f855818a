"""A program that ends by itself sooner at one learning rate than at another has spent no budget there."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.results import load
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from tests import factories

SPENT, REACHED = TrialStatus.BUDGET_EXHAUSTED, TrialStatus.REACHED
ODD = "in 1 trials the program ended earlier than in others of their batch size (at step 20 of 100 at"


@pytest.mark.parametrize(
    ("workload", "budget", "ends", "told"),
    [
        ("command", 10**9, [(8, 20, SPENT), (8, 100, SPENT)], True),
        ("command", 10**9, [(8, 20, SPENT), (8, 100, REACHED)], True),
        ("command", 10**9, [(8, 95, SPENT), (8, 100, SPENT)], False),
        ("command", 10**9, [(4, 20, SPENT), (8, 100, SPENT)], False),
        ("command", 10**9, [(8, 20, REACHED), (8, 100, SPENT)], False),
        ("command", 20, [(8, 20, SPENT), (8, 100, SPENT)], False),
        ("synthetic", 10**9, [(8, 20, SPENT), (8, 100, SPENT)], False),
    ],
)
def test_it_is_told_with_the_place(
    tmp_path: Path, workload: str, budget: int, ends: list[tuple[int, int, TrialStatus]], told: bool
) -> None:
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest({"name": "one", "protocol": {"prune_factor": None}})
    plain = {"workload": Choice(name=workload), "optimizer": Choice(name="adamw"), "target": factories.TARGET}
    for count, (size, last, status) in enumerate(ends, 1):
        config = TrialConfig(**plain, lr=count / 100, batch_size=size, seed=0, max_steps=budget)
        rows = [(0, 5.6), (10, 4.0 + count), (last, 2.3 if status is REACHED else 3.0 + count)]
        store.save(factories.trial(config, rows, status))
    notes = load(tmp_path).notes
    assert (
        any(note.startswith(f"sweep one, adamw: {ODD} batch size 8 and learning rate 0.01)") for note in notes) == told
    )
    assert len(notes) == told
