"""Final losses under batch schedules against known ones."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.present import to_json
from analysis.present.figures import figures_of
from cbs.errors import ResultsError
from cbs.registry.choices import parse_choice
from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.store import Store
from extensions.schedules.losses import LossDifference, ScheduleLoss, schedule_losses
from tests.equal_budgets import World, write

CONFIG = AnalysisConfig(resamples=400)
BUDGET, SIZES, NOISE = 4096, (16, 64), 0.001
TABLE = "stages(table='0:16 2048:64')"


def add(
    store: Store, loss: Callable[[float], float], *, seeds: int = 3, examples: int = BUDGET, ends: str = ""
) -> None:
    """Trials under the schedule from batch size 16 that end at a loss by learning rate."""
    config = next(result.config for result in store.results() if result.config.batch_size == 16)
    lrs = sorted({result.config.lr for result in store.results() if result.config.batch_size == 16})
    steps = examples // 2 // 16 + examples // 2 // 64
    rng = np.random.default_rng(3)
    for lr in lrs:
        for seed in range(seeds):
            own: TrialConfig = dataclasses.replace(config, lr=lr, seed=seed, batch_schedule=parse_choice(TABLE))
            last = loss(lr) + NOISE * rng.standard_normal()
            points = [(0, 0, 5.0), (steps // 2, examples // 4, last + 0.3), (steps, examples, last)]
            rows = [Measurement(step=s, examples=e, lr=lr, value=v, train_loss=1.0) for s, e, v in points]
            size = np.repeat([16, 64], [examples // 2 // 16, examples // 2 // 64])
            columns = {"step": np.arange(1, steps + 1), "examples": np.cumsum(size), "batch_size": size}
            store.save(
                TrialResult(
                    config=own, status=TrialStatus[ends or "BUDGET_EXHAUSTED"], evaluations=rows, steps_to_target=None,
                    steps=columns | {"train_loss": np.ones(steps), "lr_factor": np.ones(steps)},
                    workload=next(store.results()).workload,
                )
            )  # fmt: skip


def judged(root: Path, schedule: str = "stages") -> ScheduleLoss:
    found = schedule_losses(root, CONFIG)
    assert [(each.schedule, each.batch_size) for each in found.entries] == [
        ("constant", 16), ("constant", 64), ("stages", 16),
    ]  # fmt: skip
    return next(each for each in found.entries if each.schedule == schedule)


def less(entry: ScheduleLoss, batch_size: int) -> LossDifference:
    return next(each for each in entry.against if each.batch_size == batch_size)


@pytest.fixture
def world(tmp_path: Path) -> Store:
    write(tmp_path / "s", {"adamw": World(critical=64.0)}, sizes=SIZES, budget=BUDGET, noise=NOISE)
    return Store(tmp_path / "s")


def bowl(least: float) -> Callable[[float], float]:
    """Losses about the learning rate that is the best of the grid at batch size 16."""
    best = 1.1e-3 * np.sqrt(16)
    return lambda lr: least + 0.02 * float(np.log(lr / best)) ** 2


def test_the_difference_to_each_constant_batch_size_is_found_with_its_interval(world: Store) -> None:
    truth = World(critical=64.0)
    small, large = (truth.loss(size, 1e-3 * np.sqrt(size), BUDGET) for size in SIZES)
    add(world, bowl(small + 0.01))
    entry = judged(world.root)
    assert (entry.seeds, entry.at_grid_edge, entry.examples, entry.steps) == (3, False, BUDGET, 128 + 32)
    for size, expected, saved in ((16, 0.01, 1 - 160 / 256), (64, small + 0.01 - large, 1 - 160 / 64)):
        near = less(entry, size)
        low, high = near.interval
        assert near.value == pytest.approx(expected, abs=3 * NOISE)
        assert low < expected < high
        assert high - low < 20 * NOISE
        assert near.steps_saved == pytest.approx(saved)
    assert less(entry, 16).probability_smaller == 0.0
    assert less(entry, 64).probability_smaller == 1.0
    constant = schedule_losses(world.root, CONFIG).entries[0]
    assert [each.batch_size for each in constant.against] == [64]


def test_more_is_better_the_other_way_round(tmp_path: Path) -> None:
    write(tmp_path / "s", {"adamw": World(critical=64.0)}, sizes=SIZES, budget=BUDGET, noise=NOISE, metric="accuracy",
          direction="above")  # fmt: skip
    store, truth = Store(tmp_path / "s"), World(critical=64.0)
    small = truth.loss(16, 1e-3 * np.sqrt(16), BUDGET)
    add(store, lambda lr: -bowl(small + 0.05)(lr))
    near = less(judged(store.root), 16)
    assert near.value == pytest.approx(-0.05, abs=3 * NOISE)  # an accuracy that is .05 lower
    assert near.interval[0] - NOISE / 2 < -0.05 < near.interval[1] + NOISE / 2
    assert near.interval[0] < near.value < near.interval[1]


@pytest.mark.parametrize("better", [False, True])
def test_where_the_best_rate_is_an_edge_of_the_grid_one_end_is_open(tmp_path: Path, better: bool) -> None:
    kind = {"metric": "accuracy", "direction": "above"} if better else {}
    write(tmp_path / "s", {"adamw": World(critical=64.0)}, sizes=SIZES, budget=BUDGET, noise=NOISE, **kind)
    sign = -1.0 if better else 1.0
    add(Store(tmp_path / "s"), lambda lr: sign * (3.0 + 0.1 * float(np.log(lr))))  # the lowest is the best
    entry = judged(tmp_path / "s")
    near = less(entry, 16)
    assert entry.at_grid_edge
    assert [end is None for end in near.interval] == [not better, better]
    assert near.probability_smaller is None
    assert [end is None for end in entry.metric.interval] == [not better, better]


def test_a_single_learning_rate_beside_tuned_ones_is_an_edge(world: Store) -> None:
    add(world, bowl(3.0))
    scheduled = [result for result in world.results() if result.config.batch_schedule is not None]
    highest = max(result.config.lr for result in scheduled)
    for result in scheduled:
        if result.config.lr != highest:
            shutil.rmtree(world.root / "trials" / result.trial_id)
    entry = judged(world.root)
    assert entry.at_grid_edge
    assert None in entry.metric.interval


def test_what_cannot_be_compared_is_refused(tmp_path: Path, world: Store) -> None:
    with pytest.raises(ResultsError, match=r"no batch schedule at .* has constant batch sizes to compare with"):
        schedule_losses(world.root, CONFIG)
    add(world, bowl(3.0), examples=2 * BUDGET)
    with pytest.raises(
        ResultsError, match="different budgets in budget: constant from batch size 16 saw 4096 examples of 8192"
    ):
        schedule_losses(world.root, CONFIG)
    write(tmp_path / "t", {"adamw": World()}, sizes=SIZES, budget=BUDGET, stops_at_target=True)
    add(Store(tmp_path / "t"), bowl(3.0))
    with pytest.raises(ResultsError, match="trials end at a target; run the sweep with --budget"):
        schedule_losses(tmp_path / "t", CONFIG)


def test_it_is_told_as_a_table_a_figure_and_json(world: Store, run: Callable[..., tuple[int, str, str]]) -> None:
    add(world, bowl(3.0))
    code, out, err = run("schedule", "judge", world.root, "--resamples", 100)
    assert code == 0, err
    code, _, refused = run("schedule", "judge", world.root, "--target", 3, "--devices", 2, "--definition", "sfo")
    assert (code, "--target NUMBER, --definition, --devices: these trials end at a budget" in refused) == (2, True)
    assert "less that of" not in out
    rows = [line for line in out.splitlines() if line.startswith("adamw ")]
    assert sum("stages" in row for row in rows) == sum("constant" in row for row in rows) == 2, out
    (picture,) = figures_of(schedule_losses(world.root, CONFIG))
    assert picture.name == "schedule_losses"
    (axes,) = picture.kind.figure(picture.table).axes
    assert axes.get_ylabel() == "validation loss at the end"
    assert list(picture.table["optimizer"]) == ["constant, B = 16", "constant, B = 64", "stages from 16"]
    assert to_json(schedule_losses(world.root, CONFIG))["entries"][2]["against"][0]["batch_size"] == 16
    assert (world.root / "analysis" / "schedules" / "figures" / "schedule_losses.png").is_file()
