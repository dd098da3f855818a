"""Learning rates from width to width, in stages and by telescoping, on laws that are known."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cbs.errors import ConfigError, ResultsError
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialResult
from cbs.trial.target import Target
from extensions.scale import policies as stages
from extensions.scale import telescoping
from extensions.scale.telescoping import POINTS, Telescoped, first_grid, vertex
from sweeps.launching import launch
from sweeps.launching.loop import follow
from sweeps.recipes import RECIPES
from sweeps.search.search import Limits, Search
from sweeps.spec.spec import Sweep
from tests.sweeps import simulation

WIDTHS = (16, 32, 64)


def small(**changes: object) -> Sweep:
    return RECIPES["essential_telescope"]().replace(
        target=Target(metric="validation_loss", value=1.0), max_steps=2000, **changes
    )


class Sweeps:
    """In place of :func:`sweeps.launching.launch.sweep`: trials follow a law and are kept by folder; may be killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kill_after: int | None = None) -> None:
        self.kept: dict[Path, dict[str, TrialResult]] = {}
        self.left = kill_after
        monkeypatch.setattr(simulation, "true_best_lr", self.best)

    @staticmethod
    def best(config: TrialConfig) -> float:
        return 5e-3 * math.exp(-5 / config.workload.options["width"])

    def telescope(self, sweep: Sweep, widths: tuple[int, ...], folder: Path) -> dict:
        return follow(stages.Telescope(widths), sweep, folder, self.run, Limits()).content

    def run(self, sweep: Sweep, folder: Path) -> Search:
        folder.mkdir(parents=True, exist_ok=True)
        kept = self.kept.setdefault(folder, {})
        search = Search(sweep, list(kept.values()))
        before = len(kept)
        kept |= simulation.run_search(search, stop_after=self.left)
        if self.left is not None:
            self.left -= len(kept) - before
            if self.left <= 0:
                self.left = None
                raise launch.Interrupted("killed")
        return search


def test_stages_are_folders_and_what_was_found_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = Sweeps(monkeypatch)
    told = sweeps.telescope(small(seeds=(0, 1)), WIDTHS, tmp_path)
    assert json.loads((tmp_path / "telescope.json").read_text()) == told
    assert sorted(path.name for path in sweeps.kept) == ["width-16", "width-32", "width-64"]
    for folder, results in sweeps.kept.items():
        options = {json.dumps(result.config.workload.options, sort_keys=True) for result in results.values()}
        width = int(folder.name.removeprefix("width-"))
        assert options == {json.dumps({"context": 16, "parametrization": "mup", "width": width})}
    assert [study["optimizer"] for study in told["studies"]] == ["adamw", "muon"]
    for study in told["studies"]:
        assert [stage["width"] for stage in study["stages"]] == list(WIDTHS)
        for stage in study["stages"]:
            assert abs(math.log2(stage["optimum"] / (5e-3 * math.exp(-5 / stage["width"])))) < 0.5
        assert study["trials"] == 2 * sum(len(stage["lrs"]) for stage in study["stages"])
        assert study["trials"] <= sum(len(results) for results in sweeps.kept.values())
    lines = "\n".join(stages.report_lines(told))
    assert "adamw, batch size 64, to validation_loss" in lines
    assert " ".join(lines.split()).count(stages.NO_LAW) == 2
    assert not {"drift", "alpha", "limit"} & told["studies"][0].keys()


@pytest.mark.parametrize("kill_after", [1, 8, 9, 14, 16, 17])
def test_a_kill_at_any_point_changes_nothing(kill_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small(optimizers=(Choice(name="adamw"),))
    undisturbed = Sweeps(monkeypatch).telescope(asked, (16, 32, 64, 128), tmp_path)
    killed = Sweeps(monkeypatch, kill_after)
    with pytest.raises(launch.Interrupted):
        killed.telescope(asked, (16, 32, 64, 128), tmp_path)
    assert sum(map(len, killed.kept.values())) == kill_after
    assert killed.telescope(asked, (16, 32, 64, 128), tmp_path) == undisturbed
    assert sum(map(len, killed.kept.values())) == undisturbed["studies"][0]["trials"]


@pytest.mark.parametrize(
    ("changes", "widths", "message"),
    [
        (
            {"workload": Choice(name="text", options={"context": 16})},
            WIDTHS,
            "in muP: add --set workload.parametrization=mup",
        ),
        ({"workload": Choice(name="noisy_quadratic")}, WIDTHS, "width"),
        ({}, (32, 16), "at least two widths that increase, got 32, 16"),
        ({}, (16, 40), "not a multiple of 16"),
    ],
)
def test_what_does_not_telescope_is_refused_before_anything_runs(
    changes: dict, widths: tuple[int, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = Sweeps(monkeypatch)
    with pytest.raises(ConfigError, match=message):
        sweeps.telescope(small(**changes), widths, tmp_path)
    assert not sweeps.kept


def test_edges_misses_and_carried_learning_rates_are_said() -> None:
    stage = {"width": 16, "lrs": [1.0, 2.0], "steps": [None, 5.0], "best_lr": 1.0, "optimum": 1.0}
    both = [stage | {"tuned": True, "at_grid_edge": True}, stage | {"tuned": False, "at_grid_edge": False}]
    study = {"optimizer": "lion", "batch_size": 4, "stages": both, "trials": 9, "full_grid_trials": 20}
    lines = stages.report_lines({"studies": [study], "target": "x", "output": "there"})
    assert lines[3].endswith("-  LR at the edge of the grid")
    assert lines[4].endswith("carried over")
    assert stages.NO_LAW in " ".join(" ".join(lines).split())
    assert "trials: 9; with the full grid at every width: 20" in lines


TELESCOPED = (16, 32, 64, 128)
FIRST = first_grid((1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3))
LIMIT = 6e-3


def telescope(
    widths: tuple[int, ...], first: tuple[float, ...], seeds: int, solve: Callable[[int, tuple[float, ...]], np.ndarray]
) -> Telescoped:
    """Every width answered by ``solve``."""
    plan = telescoping.Telescoping(widths, first)
    while (asked := plan.next()) is not None:
        plan.add(solve(*asked))
    return Telescoped(stages=tuple(plan.stages), seeds=seeds)


def law(
    alpha: float = 5.0, *, limit: float = LIMIT, noise: float = 0.0, seed: int = 0, jump: tuple[int, float] = (0, 1.0)
) -> Callable[[int, tuple[float, ...]], np.ndarray]:
    """Steps with a parabola in ln lr around ``limit exp(-alpha / width)``; a trial always has the same noise."""

    def solve(width: int, lrs: tuple[float, ...]) -> np.ndarray:
        best = limit * math.exp(-alpha / width) * (jump[1] if width == jump[0] else 1.0)
        rows = []
        for lr in lrs:
            draw = np.random.default_rng([seed, width, round(1e9 * lr)])
            rows.append(100 * np.exp(0.12 * math.log(lr / best) ** 2 + noise * draw.standard_normal(2)))
        return np.array(rows)

    return solve


@pytest.mark.parametrize("alpha", [-10.0, -5.0, 0.0, 5.0, 10.0])
def test_without_noise_every_tuned_width_is_exact_and_the_last_one_move_off(alpha: float) -> None:
    found = telescope(TELESCOPED, FIRST, 2, law(alpha))
    for stage in found.stages[:-1]:
        # A parabola through three points is the parabola; learning rates have four digits.
        assert stage.optimum == pytest.approx(LIMIT * math.exp(-alpha / stage.width), rel=1e-3)
        assert stage.tuned
        assert not stage.at_grid_edge
    last = found.stages[-1]
    assert not last.tuned
    assert math.log(last.best_lr / (LIMIT * math.exp(-alpha / 128))) == pytest.approx(-alpha / 128, abs=2e-3)
    assert [len(stage.lrs) for stage in found.stages] == list(POINTS)
    assert found.trials == 2 * 17
    # seven octaves, in steps of 7/8 of one, at four widths
    assert found.full_grid_trials == 2 * 4 * 9


@pytest.mark.parametrize("noise", [0.03, 0.05])
def test_with_noise_the_last_learning_rate_is_within_a_step_of_the_grid_at_half_the_trials(noise: float) -> None:
    off, cost = [], []
    for seed in range(60):
        limit = LIMIT * 2 ** ((seed % 10) / 10 - 0.5)
        found = telescope(TELESCOPED, FIRST, 2, law(limit=limit, noise=noise, seed=seed))
        off.append(abs(math.log2(found.stages[-1].best_lr / (limit * math.exp(-5.0 / 128)))))
        cost.append(found.trials / found.full_grid_trials)
    assert np.quantile(off, 0.95) < 1.0
    assert np.mean(cost) <= 0.5


def test_the_grid_shrinks_like_the_drift_and_follows_the_optimum() -> None:
    stages = telescope(TELESCOPED, FIRST, 2, law()).stages
    ranges = [math.log(stage.lrs[-1] / stage.lrs[0]) for stage in stages]
    assert ranges == pytest.approx([ranges[0], ranges[0] / 2, ranges[0] / 4, 0.0], abs=1e-3)
    for before, stage in pairwise(stages):
        centre = math.sqrt(stage.lrs[0] * stage.lrs[-1])
        assert centre == pytest.approx(before.optimum, rel=1e-3)


def test_a_grid_grows_where_its_best_is_at_the_edge() -> None:
    # The optimum leaps by a factor of 30 at one width, far more than its grid foresees.
    found = telescope(TELESCOPED, FIRST, 2, law(jump=(64, 30.0)))
    stage = found.stages[2]
    assert len(stage.lrs) > POINTS[2]
    assert not stage.at_grid_edge
    assert stage.optimum == pytest.approx(30 * LIMIT * math.exp(-5 / 64), rel=1e-3)
    steps = np.diff(np.log(stage.lrs))
    assert steps == pytest.approx(np.full(len(steps), steps[0]), rel=1e-2)
    low = telescope(TELESCOPED, FIRST, 2, law(limit=LIMIT / 100)).stages[0]
    assert low.lrs[0] < FIRST[0]
    assert low.optimum == pytest.approx(LIMIT / 100 * math.exp(-5 / 16), rel=1e-3)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((1.0, 2.0, 4.0, 8.0), (0.25, 0.5, 1, 2, 4, 8, 16, 32)),
        ((1.0, 2.0, 4.0, 8.0, 16.0), (0.5, 1, 2, 4, 8, 16, 32, 64)),
        (tuple(2.0**k for k in range(9)), tuple(2.0**k for k in range(9))),
    ],
)
def test_the_first_grid_carries_on_the_optimizers_own(own: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert first_grid(own) == expected


def test_the_vertex_is_that_of_the_parabola_through_any_three_points() -> None:
    lrs = (1.0, 2.0, 7.0)
    for centre in (1.6, 2.0, 3.5):
        values = [5 + 3 * math.log(lr / centre) ** 2 for lr in lrs]
        assert vertex(lrs, values) == pytest.approx(centre)
    assert vertex(lrs, (1.0, 1.0, 1.0)) == 2.0
    assert vertex(lrs, (math.nan, 1.0, 2.0)) == 2.0
    assert vertex(lrs, (math.inf, 1.0, 2.0)) == 2.0


@pytest.mark.parametrize("widths", [(16,), (32, 16), (16, 16), (0, 16)])
def test_widths_must_increase(widths: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least two widths that increase"):
        telescope(widths, FIRST, 1, law())


def test_what_cannot_be_tuned_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least three learning rates, got 2"):
        telescope(TELESCOPED, FIRST[:2], 1, law())
    with pytest.raises(ResultsError, match="no trial at width 32 reached the target"):
        telescope(TELESCOPED, FIRST, 1, lambda width, lrs: law()(width, lrs) * (np.nan if width == 32 else 1.0))
