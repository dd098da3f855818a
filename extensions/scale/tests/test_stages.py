"""Learning rates from width to width: folders, kills, plans and what is refused; trials follow a law."""

import json
import math
from pathlib import Path

import pytest

from cbs.errors import ConfigError
from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import TrialResult
from cbs.trial.target import Target
from extensions.scale import policies as stages
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
