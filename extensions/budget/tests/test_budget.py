"""``cbs budget``: losses of runs of equal length, whose truth is known, from a folder to tables, files and figures."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import present
from analysis.config import AnalysisConfig
from analysis.estimate.comparison import Standing
from analysis.present import presentation
from analysis.present.figures import figures_of
from analysis.quantities import Quantity
from cbs.errors import ConfigError
from cbs.trial.config import Schedule
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from extensions.budget.equal_budgets import Budgets, OptimizerAtBudget, budget
from extensions.budget.tables import precise
from tests.analysis.conftest import sketches as sketches
from tests.equal_budgets import BUDGET, SIZES, World, best_lr, write
from tests.factories import inside

FAST = AnalysisConfig(resamples=400)
TRUE = World()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("one")
    write(root, {"adamw": TRUE})
    return root


@pytest.fixture(scope="module")
def answered(one: Path) -> Budgets:
    return budget(one, config=FAST)


def only(found: Budgets) -> OptimizerAtBudget:
    ((entry,),) = [scope.optimizers for scope in found.budgets]
    return entry


def test_losses_are_those_at_the_best_learning_rate_between_the_ones_that_were_run(answered: Budgets) -> None:
    entry = only(answered)
    assert [size.batch_size for size in entry.sizes] == list(SIZES)
    for size in entry.sizes:
        true = TRUE.loss(size.batch_size, best_lr(size.batch_size), BUDGET)
        assert size.metric.value == pytest.approx(true, abs=1e-3)
        assert inside(size.metric.interval, true)
        assert size.best_lr == pytest.approx(1.1 * best_lr(size.batch_size))
        assert (size.seeds, size.at_grid_edge, size.steps) == (3, False, BUDGET // size.batch_size)
        assert inside(size.excess.interval, TRUE.excess(size.batch_size))
    assert entry.verdict == "ok"


def test_what_is_within_the_margin_is_told_from_what_is_not(answered: Budgets) -> None:
    entry = only(answered)
    standings = {size.batch_size: size.excess.standing for size in entry.sizes}
    assert standings[8] is standings[4] is Standing.EQUAL
    assert standings[64] is standings[128] is Standing.WORSE
    assert entry.equivalence.best.value in (4, 8)
    assert inside(entry.equivalence.best.interval, 4)
    assert entry.equivalence.largest_equal in (8, 16)
    assert entry.equivalence.smallest_worse == 64
    # 1 + B/256 = e^(0.01/0.1) (1 + 4/256), to first order
    true = 256 * ((1.01 + 4 / 256 * 0.1) ** 10 - 1)
    within = entry.equivalence.largest_within
    assert within.value == pytest.approx(31.5, abs=4)
    assert inside(within.interval, true)
    assert within.interval[0] > 16
    assert within.interval[1] < 64


def test_one_seed_takes_the_noise_from_the_scatter_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a", {"adamw": TRUE}, seeds=1)
    entry = only(budget(tmp_path / "a", config=FAST))
    assert entry.verdict == "too few seeds"
    assert inside(entry.sizes[0].metric.interval, TRUE.loss(4, best_lr(4), BUDGET))
    assert all(end is not None for size in entry.sizes for end in size.metric.interval)
    write(tmp_path / "b", {"adamw": TRUE}, seeds=1, sizes=(4, 8, 128))
    entry = only(budget(tmp_path / "b", config=FAST))
    assert entry.verdict == "too few seeds"
    assert {size.metric.interval for size in entry.sizes} == {(None, None)}
    assert {size.excess.standing for size in entry.sizes} == {Standing.UNKNOWN}


def test_a_metric_whose_larger_values_are_better_is_the_mirror_image(one: Path, tmp_path: Path) -> None:
    write(tmp_path, {"adamw": TRUE}, metric="accuracy", direction="above")
    found, mirrored = (only(budget(root, config=FAST, within="0.01")) for root in (one, tmp_path))
    for size, other in zip(found.sizes, mirrored.sizes, strict=True):
        assert other.metric.value == pytest.approx(-size.metric.value)
        assert other.metric.interval == pytest.approx([-end for end in size.metric.interval[::-1]])
        assert other.excess.standing is size.excess.standing
        assert other.excess.value == pytest.approx(size.excess.value)


def test_smaller_budgets_are_read_off_constant_rates(one: Path, tmp_path: Path) -> None:
    write(tmp_path, {"adamw": TRUE}, budget=BUDGET // 4)
    found = budget(one, config=FAST, at=[BUDGET / 4, BUDGET / 3, BUDGET])
    assert [scope.budget for scope in found.budgets] == [BUDGET / 4, BUDGET / 3, BUDGET]
    run, whole = only(budget(tmp_path, config=FAST)), only(budget(one, config=FAST))
    for size, other in zip(found.budgets[0].optimizers[0].sizes, run.sizes, strict=True):
        assert size.metric.value == pytest.approx(other.metric.value, abs=2e-3)
        assert size.steps == other.steps
    for scope in found.budgets:
        for size in scope.optimizers[0].sizes:
            true = TRUE.loss(size.batch_size, best_lr(size.batch_size), scope.budget)
            assert size.metric.value == pytest.approx(true, abs=2e-3)
    assert [size.metric for size in found.budgets[2].optimizers[0].sizes] == [size.metric for size in whole.sizes]


def test_decaying_rates_refuse_smaller_budgets_and_know_data_from_two_of_them(tmp_path: Path) -> None:
    for part, examples in ((1, BUDGET), (2, BUDGET // 2), (4, BUDGET // 4)):
        write(
            tmp_path / str(part),
            {"adamw": TRUE},
            budget=examples,
            schedule=Schedule(name="cosine", decay_examples=examples),
            peak=lambda share: (1 + math.cos(math.pi * share)) / 2,
            name=f"part {part}",
        )
    with pytest.raises(ConfigError, match=r"not at their peak there.*constant ones"):
        budget(tmp_path, config=FAST, at=[BUDGET / 8])
    alone = only(budget(tmp_path / "1", config=FAST))
    assert {each.data.value for each in alone.doublings} == {None}
    assert all("second one has to be run" in each.remark for each in alone.doublings)
    assert not alone.constant
    found = budget(tmp_path, config=FAST)
    assert [scope.budget for scope in found.budgets] == [BUDGET / 4, BUDGET / 2, BUDGET]
    assert {entry.optimizer for scope in found.budgets for entry in scope.optimizers} == {"adamw"}
    last = found.budgets[2].optimizers[0].doublings[-1]
    assert last.data.value == pytest.approx(1 / 6, abs=0.03)
    for part in (2, 4):  # the smaller budgets are now those of another way to train
        store = Store(tmp_path / str(part))
        store.write_manifest({**store.manifest(), "protocol": {"clip_norm": 1.0}})
    write(tmp_path / "merit", {"merit": TRUE}, name="merit")
    entry = budget(tmp_path, config=FAST).budgets[2].optimizers[0]
    assert (entry.group.sweep, {each.data.value for each in entry.doublings}) == ("part 1", {None})


def test_runs_that_ended_at_their_target_are_left_out_with_their_batch_size(tmp_path: Path) -> None:
    def ends(size: int, lr: float, seed: int) -> tuple[float, TrialStatus]:
        soon = size == 8 and lr < 1.2 * best_lr(8) and lr > best_lr(8)
        return (0.5, TrialStatus.REACHED) if soon else (1.0, TrialStatus.BUDGET_EXHAUSTED)

    write(tmp_path, {"adamw": TRUE}, ends=ends, stops_at_target=True)
    found = budget(tmp_path, config=FAST)
    assert [size.batch_size for size in only(found).sizes] == [4, 16, 32, 64, 128]
    (note,) = [note for note in found.notes if "left out" in note]
    assert "batch size 8" in note
    assert "3 runs" in note
    assert "ended at its target" in note
    half = budget(tmp_path, config=FAST, at=[BUDGET / 2])
    assert [size.batch_size for size in only(half).sizes] == list(SIZES)


def test_a_best_rate_at_the_edge_is_told_and_says_nothing_of_equality(tmp_path: Path) -> None:
    write(tmp_path, {"adamw": TRUE}, rates=(0.125, 0.25, 0.5))
    entry = only(budget(tmp_path, config=FAST))
    assert entry.verdict == "LR optimum at edge of grid"
    assert all(size.at_grid_edge and size.metric.interval[0] is None for size in entry.sizes)
    assert {size.excess.standing for size in entry.sizes} == {Standing.UNKNOWN}
    assert entry.equivalence.best.value is None
    assert {(each.loss.value, each.data.value) for each in entry.doublings} == {(None, None)}
    assert {each.remark for each in entry.doublings} == {"a best learning rate lies at the edge of the grid"}
    write(tmp_path / "other", {"merit": TRUE}, name="other")
    assert budget(tmp_path, config=FAST).budgets[0].pairs == ()


@pytest.mark.parametrize("end", [math.inf, math.nan])
def test_a_seed_that_ends_without_a_number_at_every_rate_is_told(tmp_path: Path, end: float) -> None:
    """A trial that does not call itself diverged; the mean of the others would hide it."""
    write(tmp_path, {"adamw": TRUE}, sizes=(4, 8, 16))
    store = Store(tmp_path)
    for trial_id in store.trial_ids():
        result = store.load(trial_id)
        if (result.config.batch_size, result.config.seed) == (8, 1):
            last = replace(result.evaluations[-1], value=end)
            store.save(result.replace(evaluations=[*result.evaluations[:-1], last]))
    entry = only(budget(tmp_path, config=FAST))
    assert [(size.seeds, size.failed) for size in entry.sizes] == [(3, 0), (2, 1), (3, 0)]
    assert entry.verdict == "some seeds failed"
    assert "batch size 8 (1 of 3)" in entry.advice
    assert all(math.isfinite(size.metric.value) for size in entry.sizes)


def test_rates_far_apart_are_told_and_not_seeds_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"adamw": World(bend=2.0)}, rates=(1 / 8, 0.5, 2.0, 8.0))
    entry = only(budget(tmp_path, config=FAST))
    assert entry.verdict == "learning rates too coarse"
    assert "run some at batch size 4 (around" in entry.advice
    assert {size.excess.more_seeds for size in entry.sizes if size.excess.standing is Standing.UNKNOWN} == {None}
    for size in entry.sizes:
        assert inside(size.metric.interval, TRUE.loss(size.batch_size, best_lr(size.batch_size), BUDGET))


def test_two_optimizers_are_compared_and_one_overtakes(tmp_path: Path) -> None:
    write(tmp_path, {"adamw": World(critical=64.0, floor=1.98), "merit": World(critical=512.0)}, noise=0.001)
    (scope,) = budget(tmp_path, config=FAST).budgets
    (pair,) = scope.pairs
    assert (pair.optimizer, pair.other, pair.overtaker) == ("adamw", "merit", "merit")
    for at in pair.at:
        one, two = (world.loss(at.batch_size, best_lr(at.batch_size), BUDGET) for world in WORLDS)
        assert inside(at.interval, one - two)
    assert pair.at[0].probability < 0.05
    assert pair.at[-1].probability > 0.95
    sizes = np.geomspace(4, 128, 1000)
    differences = [WORLDS[0].loss(b, best_lr(b), BUDGET) - WORLDS[1].loss(b, best_lr(b), BUDGET) for b in sizes]
    true = sizes[int(np.argmax(np.array(differences) > 0))]
    assert inside(pair.overtakes.interval, true)
    assert pair.overtakes.value == pytest.approx(true, rel=0.3)


WORLDS = (World(critical=64.0, floor=1.98), World(critical=512.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--at", "3"), ["--at 3", "less than one batch", "of 4"]),
        (("--at", "x"), ["--at takes numbers", "1e6,2e6"]),
        (("--at", "-5"), ["--at", "above 0"]),
        (("--at", "1e9"), ["no run", "1e9"]),
        (("--at", "40000,8000,40500"), ["--at 40000,40500", "one budget"]),
        (("--within", "much"), ["--within much", "1%"]),
        (("--within", "-1%"), ["--within -1%"]),
        (("--metric", "f1"), ["no metric 'f1'", "validation_loss"]),
    ],
)
def test_bad_input_is_one_line(
    options: tuple[str, ...], words: list[str], one: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = run("budget", one, *options)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words), err


def test_unlike_budgets_are_one_line(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    write(tmp_path / "a", {"adamw": TRUE}, sizes=(4, 8))
    write(tmp_path / "b", {"merit": TRUE}, sizes=(4, 8), budget=BUDGET // 2)
    code, _, err = run("budget", tmp_path / "a", tmp_path / "b")
    assert code == 2
    assert re.search(r"one comparison: adamw in a 65,536, merit in b 32,768 sequences", err)
    assert len(err.splitlines()) == 1
    write(tmp_path / "clipped", {"adamw": TRUE}, sizes=(4, 8), budget=BUDGET // 2, clip_norm=1.0, name="clipped")
    code, _, err = run("budget", tmp_path / "a", tmp_path / "clipped")
    assert code == 2
    assert "one comparison: adamw in budget 65,536, adamw in clipped 32,768" in err
    code, out, _ = run(
        "budget", tmp_path / "a", tmp_path / "b", "--at", BUDGET // 2, "--figures", "none", "--resamples", 100
    )
    assert code == 0
    assert "merit" in out
    write(
        tmp_path / "c", {"adamw": TRUE}, ends=lambda size, *_: (0.5 if size > 16 else 1.0, TrialStatus.BUDGET_EXHAUSTED)
    )
    code, _, err = run("budget", tmp_path / "c")
    assert code == 2
    assert "different budgets" in err
    assert "--at 32768" in err
    write(tmp_path / "d", {"adamw": TRUE}, ends=lambda *_: (0.5, TrialStatus.REACHED), stops_at_target=True)
    code, _, err = run("budget", tmp_path / "d")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "no run at a budget" in err


def test_files_tables_and_figures(one: Path, tmp_path: Path, sketches: dict[str, Figure]) -> None:
    write(tmp_path / "two", {"merit": World(critical=64.0, floor=1.99)}, name="other", seed=1)
    found = budget(one, tmp_path / "two", config=FAST, at=[BUDGET / 4, BUDGET])
    files = present.write(found, tmp_path / "out")
    text = (tmp_path / "out" / "budget.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == present.to_json(found, files=files)
    drawn = {picture.name: picture for picture in figures_of(found)}
    assert set(drawn) == set(sketches) == {"budget_losses", "budget_heat", "budget_basin"}
    assert [picture.name for picture in figures_of(found, every=False)] == ["budget_losses"]  # unasked
    for figure in sketches.values():
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.01
    grid = pd.read_csv(tmp_path / "out" / "learning_rates.csv")
    assert {"batch_size", "lr", "warmup_steps", "steps", "value", "best"} <= set(grid)
    assert len(grid) == 2 * 2 * 6 * 5
    assert grid.groupby(["optimizer", "budget", "batch_size"])["best"].sum().eq(1).all()
    assert (tmp_path / "out" / "learning_rates.tex").read_text().count(r"\\") == 1 + len(grid)
    losses = pd.read_csv(tmp_path / "out" / "losses.csv")
    assert (losses["value_low"] <= losses["value"]).all()
    assert (losses["value"] <= losses["value_high"]).all()


def test_whole_batches_that_do_not_make_up_the_budget_are_told(tmp_path: Path) -> None:
    """49,000 sequences are 5.98 batches of 8192, and 6 are run: 0.3 % more; of 20,000 three batches are 23 % more."""
    write(tmp_path / "a", {"adamw": TRUE}, sizes=(8, 64, 8192), budget=49_000)
    found = budget(tmp_path / "a", config=FAST)
    assert len(only(found).sizes) == 3
    assert not any("whole batches" in note for note in found.notes)
    write(tmp_path / "b", {"adamw": TRUE}, sizes=(8, 64, 8192), budget=20_000)
    found = budget(tmp_path / "b", config=FAST)
    (note,) = [note for note in found.notes if "whole batches" in note]
    assert "-18 % at batch size 8192" in note


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (3.14159, (3.1102, 3.1724), "3.142 [3.110, 3.172]"),
        (31.4159, (28.0, 35.0), "31.4 [28.0, 35.0]"),
        (3.14159, (None, 3.1724), "3.142, at most 3.172"),
        (3.14159, (3.1102, None), "3.142, at least 3.11"),
        (3.14159, (None, None), "3.14"),
    ],
)
def test_a_value_has_two_digits_of_its_half_width(
    value: float, interval: tuple[float | None, float | None], text: str
) -> None:
    assert precise(Quantity(value, interval)) == text


def test_further_metrics_stand_in_one_table_at_the_best_learning_rates(tmp_path: Path) -> None:
    write(tmp_path, {"adamw": World(), "merit": World(floor=2.1)}, sizes=(16, 64))
    store = Store(tmp_path)
    for result in list(store.results(with_steps=True)):
        top = 10.0 + result.config.seed + (100.0 if result.config.optimizer.name == "merit" else 0.0)
        for row in result.evaluations:
            row.others.update({"hessian_top": top, "hessian_trace": 2 * top})
        store.save(result)
    answer = budget(tmp_path, config=AnalysisConfig(resamples=100))
    tables = presentation(answer).tables
    frame = tables["other_metrics"].frame()
    assert list(frame["optimizer"]) == ["adamw"] * 2 + ["merit"] * 2
    np.testing.assert_allclose(frame["hessian_top"], [11, 11, 111, 111])  # seeds 0, 1, 2
    np.testing.assert_allclose(frame["hessian_trace"], 2 * frame["hessian_top"])
    reach = 4.302653 / 3**0.5  # Student's t with two degrees of freedom at 97.5 %, deviation 1
    np.testing.assert_allclose(frame["hessian_top_high"] - frame["hessian_top"], reach, rtol=1e-6)
    later = budget(tmp_path, config=AnalysisConfig(resamples=100), at=[BUDGET / 4])
    assert "other_metrics" not in presentation(later).tables, "the ends of the runs are not those of the budget"
