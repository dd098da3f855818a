"""What steps do to matrices, from columns whose means are known, and their figure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.estimate.along_training import QUANTITIES, optimizer_steps
from analysis.questions.analyze.figures.along_training import compute_matrices


def columns(steps: int, scale: float, every: int = 1, **more: float) -> dict[str, np.ndarray]:
    at = np.arange(1.0, steps + 1)
    values = np.where((at - 1) % every == 0, scale * at, np.nan)
    return {"step": at, "train_loss": at, "weight_norm.a.b": values} | {f"{k}.a.b": v * values for k, v in more.items()}


def test_points_are_means_of_a_seed_and_medians_over_seeds_up_to_the_first_to_reach() -> None:
    table = optimizer_steps([columns(4, 1.0), columns(3, 3.0), columns(9, 100.0)], [4.0, 2.4, 9.0], batch_size=8)
    assert list(table["step"]) == [1, 2, 3]  # the second seed reaches in its third step
    assert list(table["value"]) == [3.0, 6.0, 9.0]  # of 1, 3 and 100 times the step
    assert list(table["examples"]) == [8, 16, 24]
    assert set(table["matrix"]) == {"a.b"}
    assert len(optimizer_steps([{"step": np.arange(1.0, 4)}], [3.0], batch_size=8)) == 0


def test_steps_that_were_not_recorded_do_not_count() -> None:
    found = optimizer_steps([columns(1000, 2.0, every=10)], [1000.0], batch_size=1)
    ends = list(found["step"])
    assert ends[0] == 1
    assert 2 not in ends  # nothing was recorded there
    last = found.iloc[-1]
    before = ends[-2]
    recorded = [2.0 * at for at in range(before + 1, 1001) if (at - 1) % 10 == 0]
    assert last["value"] == pytest.approx(np.mean(recorded))


def test_the_figure_has_every_optimizer_in_every_panel_at_the_largest_shared_batch_size() -> None:
    def answer(name: str, sizes: tuple[int, ...], **more: float) -> Any:
        tables = {size: optimizer_steps([columns(5, size, **more)], [5.0], size) for size in sizes}
        return SimpleNamespace(optimizer_steps=tables, group=SimpleNamespace(optimizer=name, example_unit="image"))

    table = compute_matrices([answer("adamw", (4, 16, 64)), answer("lamb", (4, 16), trust_ratio=0.5)])
    assert set(table["batch_size"]) == {16}
    assert list(dict.fromkeys(table["panel"])) == [QUANTITIES["trust_ratio"], QUANTITIES["weight_norm"]]
    trust = table[table["quantity"] == "trust_ratio"]
    assert list(trust["optimizer"]) == ["adamw", *["lamb"] * 5]
    assert list(trust["value"].dropna()) == [8.0, 16.0, 24.0, 32.0, 40.0]
    assert trust["value"].isna().sum() == 1
    assert len(compute_matrices([answer("adamw", ())])) == 0
